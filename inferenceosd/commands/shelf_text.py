"""What `list` and `show` print: reports in, text out. Pure; `now` is UTC seconds."""

from inferenceosd.commands.tables import table
from planners.durations import format_duration
from planners.sizes import format_size, parameter_size
from proxy.admin.models import ModelsReport
from proxy.admin.shelf import ShowReport

ID_DIGITS = 12
_TEMPLATES = {
    "": "none of its own: the engine's default",
    "file": "its file's",
    "layer": "its TEMPLATE layer, put into Jinja for the engine",
}


def list_text(report: ModelsReport, *, now: float) -> str:
    """The models as `ollama list` shows them, newest first."""
    if not report.models:
        return "no models; inferenceosctl pull NAME fetches one"
    newest = sorted(report.models, key=lambda model: -model.modified_at)
    rows = [
        (
            model.model,
            model.digest[:ID_DIGITS],
            format_size(model.size_bytes),
            f"{format_duration(max(0, now - model.modified_at))} ago",
        )
        for model in newest
    ]
    return table(("NAME", "ID", "SIZE", "MODIFIED"), rows, right="SIZE")


def show_text(report: ShowReport) -> str:
    """One model: its facts, its parameters, its system prompt, its licences' first lines."""
    facts = [
        ("model", report.model),
        ("architecture", report.architecture),
        ("parameters", parameter_size(report.n_params)),
        ("quantization", report.quantization),
        ("context length", str(report.n_ctx_train)),
        ("embedding length", str(report.n_embd)),
        ("capabilities", ", ".join(report.capabilities)),
        ("template", _TEMPLATES.get(report.template_source, report.template_source)),
        ("size", format_size(report.size_bytes)),
        ("digest", report.digest),
        ("file", report.path),
    ]
    if report.store:
        facts.append(("store", report.store))
    parts = ["\n".join(f"{name:<18}{value}" for name, value in facts)]
    if report.parameters:
        parts.append(f"PARAMETERS\n{report.parameters}")
    if report.system:
        parts.append(f"SYSTEM\n{report.system}")
    if report.licenses:
        first = "\n".join(text.strip().partition("\n")[0] for text in report.licenses)
        parts.append(f"LICENSE\n{first}")
    return "\n\n".join(parts)
