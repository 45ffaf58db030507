"""What `inferenceosctl engines` shows: the builds on disk, and what is thought of them."""

import msgspec

from supervisor.engines.builds import Build, Order, named


class EngineOrder(msgspec.Struct, forbid_unknown_fields=True):
    """What an operator decides about a build."""

    action: Order
    build: str
    """Its id, or BACKEND/ID."""


class BuildReport(msgspec.Struct, frozen=True):
    """One build."""

    backend: str
    build_id: str
    version: str
    commit: str
    built_at: str
    path: str
    """Of its llama-server."""
    is_current: bool
    is_proven: bool
    is_pinned: bool
    is_used: bool
    """Whether models are launched on it."""
    is_on_trial: bool
    """Whether one model tries it."""
    failed: str | None
    """Why it was rolled back, or is refused; None where it was not."""


class EnginesReport(msgspec.Struct, frozen=True):
    """Every build, by backend, the newest first."""

    builds: tuple[BuildReport, ...]

    def named(self, name: str) -> BuildReport:
        """The build that `name` means. Raises NoSuchBuild."""
        return named(name, self.builds)


def build_report(
    build: Build, *, is_used: bool = False, is_on_trial: bool = False, refused: str | None = None
) -> BuildReport:
    """A build with what its manifest says."""
    manifest = build.manifest()
    return BuildReport(
        backend=build.backend,
        build_id=build.build_id,
        version=manifest.found.version,
        commit=manifest.commit,
        built_at=manifest.built_at,
        path=str(build.binary),
        is_current=build.is_current,
        is_proven=build.is_proven,
        is_pinned=build.is_pinned,
        is_used=is_used,
        is_on_trial=is_on_trial,
        failed=build.failed or refused,
    )
