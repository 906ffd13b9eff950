"""Which tests `make check` runs, on a made-up project."""

from __future__ import annotations

from pathlib import Path

from touched import related_tests


def test_tests_are_found_over_an_import_and_over_a_file_between(tmp_path: Path) -> None:
    texts = {
        "pkg/low.py": "",
        "pkg/high.py": "from pkg import low",
        "pkg/far.py": "import pkg.high",
        "pkg/other.py": "",
        "tests/helper.py": "from pkg.low import x",
        "tests/test_low.py": "from pkg.low import name",
        "tests/test_high.py": "def test():\n    from pkg.high import late",
        "tests/test_helped.py": "import helper",
        "tests/test_far.py": "import pkg.far",
        "tests/test_other.py": "import pkg.other",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    among = [tmp_path / name for name in texts]

    def found(*changed: str) -> set[str]:
        files = [tmp_path / name for name in changed]
        return {path.stem for path in related_tests(files, among, tmp_path)}

    assert found("pkg/low.py") == {"test_low", "test_high", "test_helped"}
    assert found("tests/test_other.py", "README.md") == {"test_other"}
    assert found("pkg/other.py", "pkg/far.py") == {"test_other", "test_far"}
    assert found("docs/page.md") == set()
