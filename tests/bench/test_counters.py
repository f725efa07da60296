from benchmarks import counters


def table_of(*rows):
    """As ncu writes it: its own lines, names, units, then a line for each launch."""
    names = ["ID", "Kernel Name", *counters.METRICS]
    units = ["", "", "us", "Mbyte", "Kbyte", "%", "%", "%", "%", "%"]
    lines = [",".join(f'"{cell}"' for cell in line) for line in (names, units, *rows)]
    return "==PROF== Connected to process 7\n" + "\n".join(lines) + "\n==PROF== Disconnected\n"


def test_kernels_and_numbers_are_read_in_one_unit():
    row = ["0", "void row_gradient<__nv_bfloat16, true>(float const*)", "1,250.5", "262.5", "500", *"12345"]
    first, second = counters.parsed(table_of(row, ["1", "table_counts", *["2"] * 8]))
    assert first["kernel"] == "row_gradient" and second["kernel"] == "table_counts"
    assert first["us"] == 1250.5 and first["read_mb"] == 262.5 and first["written_mb"] == 0.5
    assert [first[name] for name in ("dram", "l2", "l1", "issue", "warps")] == [1, 2, 3, 4, 5]


def test_a_machine_without_ncu_is_told_so(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert counters.run("abc", tmp_path) == 1
    assert "no counters of ('large'" in capsys.readouterr().out and not list(tmp_path.iterdir())


def test_a_case_without_kernels_of_ours_takes_no_other_with_it(monkeypatch, tmp_path, capsys):
    assert counters.parsed("==PROF== Connected to process 7\n==WARNING== No kernels were profiled.\n") == []
    monkeypatch.setattr(counters, "_profiled", lambda *case: [])
    assert counters.run("abc", tmp_path) == 1
    assert capsys.readouterr().out.count("none of our kernels ran") == len(counters.CASES)


def test_the_page_has_a_table_for_each_case(monkeypatch, tmp_path):
    numbers = dict.fromkeys(counters.METRICS.values(), 1.0)
    monkeypatch.setattr(
        counters,
        "_profiled",
        lambda *case: [counters.Counters(case[0], case[2], case[3], case[4], case[1], "k", **numbers)],
    )
    assert counters.run("abc", tmp_path) == 0
    (page,) = tmp_path.glob("counters_*.md")
    assert page.read_text().count("\n## ") == len(counters.CASES) and "- commit: abc" in page.read_text()
