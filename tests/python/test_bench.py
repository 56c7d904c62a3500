"""python3 -m moefarm.bench on the CPU, with a small model."""
import contextlib
import io
import json
import pathlib
import tempfile
import unittest

try:
    import torch
    import transformers  # noqa: F401
except ImportError as error:
    raise unittest.SkipTest(f"no PyTorch or transformers: {error}") from error

from moefarm import bench

torch.set_num_threads(1)


class Bench(unittest.TestCase):
    def test_table_and_json(self) -> None:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out:
            file = pathlib.Path(folder, "results.json")
            status = bench.main(["--model", "small", "--layers", "1", "--device", "cpu", "--batch", "1,3",
                                 "--experts", "moefarm,grouped_mm,eager", "--json", str(file)])
            saved = json.loads(file.read_text(encoding="utf-8"))
        self.assertEqual(status, 0)
        self.assertEqual([(r["implementation"], r["batch"]) for r in saved["results"]],
                         [(name, n) for n in (1, 3) for name in ("eager", "grouped_mm", "moefarm")])
        self.assertTrue(all(r["forward_ms"] > 0 and r["graph_ms"] is None for r in saved["results"]))
        self.assertLess(saved["errors"]["moefarm"], 0.03)
        self.assertRegex(out.getvalue(), r"moefarm: error of the logits 0\.0\d+")
        self.assertRegex(out.getvalue(), r"\n    3  moefarm +[\d.]+ +- +[\d,]+ +[\d.]+\n")

    def test_rows(self) -> None:
        results = [bench.Result("grouped_mm", 16, 4.0, 2.0, ""), bench.Result("moefarm", 16, 3.0, 1.0, ""),
                   bench.Result("batched_mm", 16, None, None, "out of memory")]
        rows = list(bench.lines(results))
        self.assertEqual(rows[1:4], [
            "   16  grouped_mm        4.00      2.00      8,000   1.00",
            "   16  moefarm           3.00      1.00     16,000   2.00",
            "   16  batched_mm           -         -          0   0.00  out of memory"])

    def test_refused_options(self) -> None:
        for option, value, expected in (
                ("--batch", "1,0", "'1,0': expected numbers from 1, separated by commas"),
                ("--batch", "", "'': expected numbers from 1"), ("--batch", "x", "'x': expected numbers"),
                ("--layers", "0", "'0': expected a number from 1"),
                ("--layers", "-2", "'-2': expected a number from 1"),
                ("--layers", "x", "'x': expected a number from 1"),
                ("--experts", "eagre", "'eagre': expected names from eager,batched_mm,grouped_mm,moefarm"),
                ("--model", "none", "invalid choice: 'none'")):
            with self.subTest(option=option, value=value), self.assertRaises(SystemExit) as ended, \
                    contextlib.redirect_stderr(io.StringIO()) as errors:
                bench.main([option, value])
            self.assertEqual(ended.exception.code, 2)
            self.assertIn(expected, errors.getvalue())


if __name__ == "__main__":
    unittest.main()
