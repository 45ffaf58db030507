"""`inferenceosd`: options in, a running daemon or a checked configuration out."""

import sys
from typing import TYPE_CHECKING, NoReturn

import click

from inferenceosd import __version__
from inferenceosd.installation import strangers
from inferenceosd.lean_imports import lean_imports

if TYPE_CHECKING:
    from inferenceosd.settings.config import Config

EXIT_FAILED = 1
EXIT_USAGE = 2

EPILOG = """\
\b
Settings come from these, each over the ones before:
  built-in defaults
  the configuration file: --config, $INFERENCEOSD_CONFIG, else config.toml in
    ~/.config/inferenceosd (not for root), else in /etc/inferenceosd
  OLLAMA_HOST, OLLAMA_MODELS, OLLAMA_KEEP_ALIVE, ... as Ollama means them
  INFERENCEOSD_SECTION_KEY for [section] key: INFERENCEOSD_SERVER_LISTEN=:8080
  options

\b
Examples:
  inferenceosd                                serve on 127.0.0.1:11434
  inferenceosd --model-dir ~/models           ... the GGUF files of that folder
  inferenceosd --config daemon.toml --check   is this file right?
  inferenceosctl reload                       read the configuration again, as SIGHUP does

Exit status: 0 after a stop that was asked for, 1 where the daemon could not start or go on, 2 for
wrong options and settings. Talk to a running daemon with inferenceosctl.
"""


@click.command(
    epilog=EPILOG, context_settings={"max_content_width": 100, "help_option_names": ["--help"]}
)
@click.option(
    "--config",
    metavar="FILE",
    help="Read settings from this TOML file.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Serve clients here. [127.0.0.1:11434]",
)
@click.option(
    "--admin-socket",
    metavar="PATH",
    help="Serve inferenceosctl on this Unix socket. [admin.sock in the runtime folder]",
)
@click.option(
    "--state-dir",
    metavar="DIR",
    help="Keep the journal and what is known of engines here.",
)
@click.option(
    "--model-dir",
    "model_dirs",
    metavar="DIR",
    multiple=True,
    help="Offer the GGUF files in this folder and below; may be given several times.",
)
@click.option(
    "--log-format",
    type=click.Choice(["auto", "json", "console"]),
    help="How to log to stderr. [auto: console on a terminal, else json]",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="The least that is logged. [info]",
)
@click.option(
    "--insecure", is_flag=True, help="Serve other machines though no API key exists. Not advised."
)
@click.option("--check", is_flag=True, help="Check the configuration and exit: 0 right, 2 wrong.")
@click.version_option(__version__, message="%(prog)s %(version)s")
def main(
    config: str | None,
    listen: str | None,
    admin_socket: str | None,
    state_dir: str | None,
    model_dirs: tuple[str, ...],
    log_format: str | None,
    log_level: str | None,
    insecure: bool,
    check: bool,
) -> None:
    """Serve local language models to clients of Ollama, OpenAI and Anthropic.

    Finds GGUF files, plans how each fits this machine's memory, and runs one llama-server process
    per model, loaded on the first request and unloaded when idle.
    """
    if (problem := strangers()) is not None:
        _fail(problem, EXIT_FAILED)
    # Late, for the check above: what these import may be somebody else's.
    with lean_imports():
        from inferenceosd.settings.config import Options, read_config
        from inferenceosd.settings.error import ConfigError

    options = Options(
        config=config,
        listen=listen,
        admin_socket=admin_socket,
        state_dir=state_dir,
        model_dirs=model_dirs,
        log_format=log_format,
        log_level=log_level,
        insecure=insecure,
    )

    def reload() -> "Config":
        return read_config(options)

    try:
        settings = reload()
    except ConfigError as exc:
        _fail(str(exc), EXIT_USAGE)
    if check:
        return _check(settings)
    with lean_imports():
        from inferenceosd.daemon import run  # late: --check and --help need no server

    sys.exit(run(settings, reload=reload))


def _check(settings: "Config") -> None:
    """Says whether a daemon would start with these settings."""
    from inferenceosd.door.listening import is_local
    from inferenceosd.door.lock import check_lock
    from inferenceosd.settings.error import ConfigError

    try:
        check_lock(settings, is_local=is_local(settings.listen))
    except ConfigError as exc:
        _fail(str(exc), EXIT_USAGE)
    for warning in settings.warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"{_read(settings)}: ok")


def _read(settings: "Config") -> str:
    """What the settings come from: file, variables, options."""
    file, others = settings.file, ", ".join(settings.beside_file)
    if others:
        return f"{file or 'no configuration file'}, with {others}"
    return file or "no configuration file, built-in defaults"


def _fail(sentence: str, status: int) -> NoReturn:
    click.echo(f"inferenceosd: {sentence}", err=True)
    sys.exit(status)
