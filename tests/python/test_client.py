"""moefarm.Client against moefarmd with a CPU worker and a simulated device, and against servers that fail."""
import contextlib
import doctest
import hashlib
import http.server
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from typing import Any, Callable, Dict, Iterator, List, Tuple
from unittest import mock

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / "python"),
                str(pathlib.Path(__file__).resolve().parent)]
import farm as farms  # noqa: E402

from moefarm import client, client_http, client_results  # noqa: E402
from moefarm.client import ApiError, Client, ClientError, WaitTimeout  # noqa: E402

TYPES = "ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
LAYER = f"64,32,4,2,{TYPES}"
SIM = "gfx942/304"
CONFIG = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 64,
          "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "hidden_act": "silu",
          "torch_dtype": "bfloat16", "norm_topk_prob": True}
FAST: Dict[str, Any] = {"topk": 2, "regret": "none"}  # options of a batch that ends soon
LIMIT_S = 100.0


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite, pattern: Any) -> unittest.TestSuite:
    for module in (client, client_http, client_results):
        tests.addTests(doctest.DocTestSuite(module, optionflags=doctest.IGNORE_EXCEPTION_DETAIL))
    return tests


@unittest.skipIf(farms.MISSING, farms.MISSING)
class OnFarm(unittest.TestCase):
    farm: farms.Farm
    cpu: str

    @classmethod
    def setUpClass(cls) -> None:
        cls.farm = farms.Farm(devices=("cpu:0", f"sim:{SIM}:0"))
        cls.addClassCleanup(cls.farm.stop)

    def setUp(self) -> None:
        self.client = Client(self.farm.url)
        self.addCleanup(self.client.close)

    def file(self, name: str, text: str) -> pathlib.Path:
        path = self.farm.folder / name
        path.write_text(text)
        return path

    def cpu_class(self) -> str:
        """Waits until both workers have joined. Returns the class of the CPU."""
        end = time.monotonic() + farms.START_S
        while time.monotonic() < end:
            workers = list(self.client.workers())
            classes = {worker.device_class for worker in workers if not worker.simulated}
            if classes and len(workers) == 2:
                return classes.pop()
            time.sleep(0.05)
        raise AssertionError(self.farm.logs())

    def tune(self, token: int, device_class: str, **options: Any) -> client_results.Batch:
        path = self.file(f"{token}.csv", f"{farms.HEAD}\n{token},{LAYER}\n")
        receipt = self.client.submit(path, classes=[device_class], **{**FAST, **options})
        self.assertEqual((receipt.shapes, receipt.tasks, receipt.errors), (1, 1, ()))
        batch = self.client.wait(receipt.batch, timeout_s=LIMIT_S)
        self.assertEqual((batch.state, batch.failed, batch.name), ("done", 0, path.name), self.farm.logs())
        return batch

    def test_from_shapes_to_a_pulled_table(self) -> None:
        """Submit, wait, rank, why, export, look up, freeze, stage, approve, pull and compare."""
        cpu = self.cpu_class()
        seen: List[client_results.Batch] = []
        file = self.file("one.csv", f"{farms.HEAD}\n4,{LAYER}\n")
        receipt = self.client.submit(file, classes=[cpu], **FAST)
        batch = self.client.wait(receipt.batch, seen.append, LIMIT_S)
        self.assertEqual([state.id for state in seen], [batch.id] * len(seen))
        self.assertEqual(seen[-1], batch)
        self.assertIn(batch.id, [known.id for known in self.client.batches()])

        [task] = self.client.tasks(batch.id)
        self.assertEqual((task.state, task.device_class, task.shape["token"]), ("done", cpu, 4), task)
        ranked = list(self.client.rank(task.id, finalists=True))
        self.assertTrue(any(pipeline.winner for pipeline in ranked), ranked)
        winner = next(pipeline for pipeline in ranked if pipeline.winner)
        self.assertEqual((winner.id, list(winner.names)), (task.pipeline, list(task.winner or ())))
        self.assertEqual([op.name for op in winner.ops], list(winner.names))
        reasons = list(self.client.why(task.id))
        self.assertTrue(reasons and all(reason.reason for reason in reasons))

        table = self.client.export(batch=batch.id)
        self.assertEqual([(row["token"], row["model_dim"]) for row in table.rows()], [("4", "64")])
        self.assertEqual(hashlib.sha256(table.text.encode()).hexdigest(), table.sha256)
        found = self.client.lookup(LAYER, 4, cpu)
        assert found and found.csv
        self.assertEqual((found.exact, found.task, found.us), (True, task.id, task.us))
        self.assertIsNone(self.client.lookup(LAYER, 4, "gfx90a/104"))

        first = self.client.freeze("first", batch=batch.id)
        self.assertEqual(self.client.freeze("first", batch=batch.id), first)
        [release] = self.client.releases("first")
        self.assertEqual((release.id, release.sha256), (first.release, table.sha256))
        self.assertEqual(self.client.stage("stable", first.release, "test").staged, first.release)
        self.assertEqual(self.client.approve("stable", first.release).current, first.release)
        target = self.farm.folder / "tuned.csv"
        self.assertEqual(self.client.pull("stable", target), client_results.Pulled(f"{first.release} first",
                                                                                   True))
        self.assertEqual(target.read_text(), table.text)
        self.assertFalse(self.client.pull("stable", target).changed)
        target.write_text(table.text + "\n")
        with self.assertRaisesRegex(ValueError, "is not a release of this farm"):
            self.client.pull("stable", target)
        self.assertTrue(self.client.pull("stable", target, force=True).changed)

        self.tune(8, cpu)
        second = self.client.freeze("second", class_=cpu)
        diff = self.client.diff(second.release, first.release)
        self.assertEqual((diff.same, len(diff.added), diff.removed), (1, 1, ()), diff)

    def test_nightly_job(self) -> None:
        """examples/nightly.py tunes a model from its config.json on two nights."""
        self.cpu_class()
        config = self.file("config.json", json.dumps(CONFIG))
        report = self.farm.folder / "report.md"
        program = str(farms.ROOT / "examples/nightly.py")
        command = [sys.executable, program, str(config), "nightly", str(report), "1", "2"]
        environment = {**os.environ, "MOEFARM_URL": self.farm.url, "PYTHONPATH": str(farms.ROOT / "python")}
        for night in (1, 2):
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False,
                                  timeout=LIMIT_S)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr + self.farm.logs())
            self.assertIn("4 of 4 tasks", done.stdout)
            lines = report.read_text().splitlines()
            self.assertRegex(lines[0], "^# .*config.json: release r-[0-9a-f]+, 2 rows$")
            if night == 1:
                channel = self.client.channel("nightly")
                assert channel and channel.staged
                self.client.approve("nightly", channel.staged.id)
        self.assertTrue(all(re.match(r"- [+-][\d.]+%, [\d.]+ us: ", line) for line in lines[1:]), lines)

    def test_model_layers(self) -> None:
        """A layer from a config.json, a checkpoint's folder, and the name of a model; refusals."""
        config = self.file("own.json", json.dumps(CONFIG))
        layer = self.client.model_layer(config, tp=2)
        columns = ("model_dim", "inter_dim", "expert", "topk", "q_type")
        self.assertEqual([layer.shape[name] for name in columns], [64, 16, 4, 2, "QuantType.No"])
        self.assertEqual((layer.tokens[0], layer.tokens[-1], len(layer.rows())), (1, 32768, 16))
        folder = self.farm.folder / "checkpoint"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(CONFIG))
        (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NEW"}}))
        unknown = self.client.model_layer(folder)
        with self.assertRaisesRegex(ValueError, "NEW.*give q_type, q_dtype_a, q_dtype_w"):
            unknown.rows()
        fp8 = {"q_type": "QuantType.per_Token", "q_dtype_a": "torch.float8_e4m3fn",
               "q_dtype_w": "torch.float8_e4m3fn"}
        self.assertEqual(unknown.rows([8], **fp8)[0]["q_type"], "QuantType.per_Token")
        known = self.client.model_layer("deepseek-v3", tp=8, fused_shared=1, class_="gfx942/304")
        self.assertEqual((known.shape["expert"], known.shape["topk"], known.shape["q_dtype_w"]),
                         (257, 9, "torch.float8_e4m3fnuz"))
        empty = self.file("empty.json", "{}")
        for text, at, call in (
                ("did you mean deepseek-v3", "model", lambda: self.client.model_layer("deepseek-v33")),
                ("hidden_size: .*missing", "files", lambda: self.client.model_layer(empty)),
                ("1 to 1024", "tp", lambda: self.client.model_layer(config, tp=0)),
                ("divisible|multiple|divide", "tp", lambda: self.client.model_layer(config, tp=7)),
                ("device class", "class", lambda: self.client.model_layer(config, class_="H200")),
                ("unknown member", "tpp", lambda: self.client._post("/models/layer", body={"tpp": 1})),
                ("either files", "model", lambda: self.client._post("/models/layer", body={})),
                ("by name", "files", lambda: self.client._post("/models/layer", body={"files": {"a": "b"}}))):
            with self.subTest(text), self.assertRaisesRegex(ApiError, text) as refused:
                call()
            self.assertEqual((refused.exception.status, refused.exception.errors[0].at), (422, at))

    def test_simulated_rows(self) -> None:
        self.cpu_class()
        batch = self.tune(16, SIM)
        self.assertEqual(self.client.export(batch=batch.id).rows(), [])
        self.assertEqual(len(self.client.export(batch=batch.id, simulated=True).rows()), 1)

    def test_submissions(self) -> None:
        """Rows as mappings; a key makes one batch; refused rows are listed; a batch is cancelled."""
        row = dict(zip(farms.HEAD.split(","), f"32,{LAYER}".split(",")))
        first = self.client.submit([row], name="rows", classes=["gfx950/256"], idempotency_key="k")
        again = self.client.submit([row], name="rows", classes=["gfx950/256"], idempotency_key="k")
        self.assertEqual((first.batch, len(first.warnings)), (again.batch, 1))
        with self.assertRaisesRegex(WaitTimeout, f"batch {first.batch} did not end in 0.05 s: 0 of 1"):
            self.client.wait(first.batch, timeout_s=0.05)
        self.client.cancel(first.batch)
        self.assertEqual(self.client.wait(first.batch).state, "cancelled")
        mixed = self.client.submit([row, {**row, "topk": 0}], classes=[SIM], **FAST)
        self.assertEqual((mixed.shapes, [error.at for error in mixed.errors]), (1, ["shapes[1].topk"]))
        self.client.wait(mixed.batch, timeout_s=LIMIT_S)

    def test_refusals(self) -> None:
        """Errors have the farm's sentence: the field, the value and how to correct it."""
        row = dict(zip(farms.HEAD.split(","), f"32,{LAYER}".split(",")))
        with self.assertRaises(ApiError) as refused:
            self.client.submit([row], topk=65)
        self.assertEqual((refused.exception.status, refused.exception.errors[0].at), (400, "options.topk"))
        self.assertRegex(str(refused.exception), "topk.*64")
        with self.assertRaisesRegex(ApiError, "HTTP status 422"):
            self.client.submit([{**row, "expert": -1}])
        with self.assertRaisesRegex(ApiError, "HTTP status 404"):
            self.client.batch(999999)
        with self.assertRaisesRegex(ApiError, "no such parameter"):
            self.client.export(clas="gfx942/304")
        with self.assertRaisesRegex(ValueError, "expected 1 to 63 letters"):
            self.client.pull("../x", self.farm.folder / "t.csv")
        self.assertEqual(list(self.client.misses()), [])
        self.assertEqual(self.client.submit_misses(), [])


@unittest.skipIf(farms.MISSING, farms.MISSING)
class Access(unittest.TestCase):
    def test_tls_and_tokens(self) -> None:
        """A CA file and a token file; without either, the error says what to set."""
        folder = tempfile.TemporaryDirectory(prefix="moefarm-client-tls-")
        self.addCleanup(folder.cleanup)
        key, certificate = f"{folder.name}/key.pem", f"{folder.name}/cert.pem"
        try:
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                            "-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj",
                            "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"], check=True,
                           capture_output=True)
        except FileNotFoundError:
            self.skipTest("openssl is missing (package openssl)")
        farm = farms.Farm("--tls-cert", certificate, "--tls-key", key, "--tokens", scheme="https", devices=())
        self.addCleanup(farm.stop)
        token_file = farm.folder / "state/admin.token"
        with mock.patch.dict(os.environ, MOEFARM_TOKEN_FILE=str(token_file), MOEFARM_CA=certificate,
                             MOEFARM_URL=farm.url):
            with Client() as admin:
                self.assertEqual(list(admin.batches()), [])
                self.assertNotIn(token_file.read_text().strip(), repr(admin))
        with Client(farm.url, ca_file=certificate) as anonymous, \
                self.assertRaisesRegex(ApiError, "status 401"):
            list(anonymous.batches())
        with Client(farm.url, token_file=token_file) as stranger, \
                self.assertRaisesRegex(ClientError, "check the CA file"):
            list(stranger.batches())


Answer = Tuple[int, Dict[str, str], bytes]


class Failing(unittest.TestCase):
    """Servers that fail in one way."""

    @contextlib.contextmanager
    def server(self, answer: Callable[[int, Any], Answer]) -> Iterator[Client]:
        """Serves what `answer` returns for the n-th request; status 0 closes the connection."""
        self.requests: List[Any] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.requests.append(self)
                status, headers, body = answer(len(outer.requests), self)
                if status == 0:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):  # the client may hang up
                    super().handle()

            def log_message(self, *_: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            with Client(f"http://127.0.0.1:{server.server_port}", timeout_s=5) as found:
                yield found
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def test_retries(self) -> None:
        """A busy farm is asked again after Retry-After; a broken connection only if that cannot act twice."""
        receipt = json.dumps({"batch": 7, "shapes": 1, "errors": []}).encode()
        moved = json.dumps({"channel": "c", "staged": 1, "current": None}).encode()
        with self.server(lambda n, _: (503, {"Retry-After": "0"}, b"") if n < 3 else (200, {}, moved)) as c:
            self.assertEqual(c.stage("c", 1).staged, 1)
            self.assertEqual(len(self.requests), 3)
        with self.server(lambda n, _: (0, {}, b"") if n < 2 else (201, {}, receipt)) as c:
            self.assertEqual(c.submit([]).batch, 7)
            keys = {request.headers["Idempotency-Key"] for request in self.requests}
            self.assertEqual((len(self.requests), len(keys)), (2, 1))
        with self.server(lambda n, _: (0, {}, b"")) as c, \
                self.assertRaisesRegex(ClientError, "check whether the farm executed the request"):
            c.stage("c", 1)
        self.assertEqual(len(self.requests), 1)
        with self.server(lambda n, _: (429, {"Retry-After": "60"}, b"")) as c, \
                self.assertRaisesRegex(ApiError, "status 429"):
            c.stage("c", 1)
        self.assertEqual(len(self.requests), 1)

    def test_unusable_replies(self) -> None:
        etag = {"ETag": '"' + "0" * 64 + '"'}
        folder = tempfile.TemporaryDirectory(prefix="moefarm-client-")
        self.addCleanup(folder.cleanup)
        cases: Dict[str, Tuple[Answer, Callable[[Client], Any]]] = {
            "the reply is not JSON": ((200, {}, b"<html>"), lambda c: c.batch(1)),
            "the reply is not a list": ((200, {}, b"{}"), lambda c: list(c.batches())),
            "reply.id: missing": ((200, {}, b"{}"), lambda c: c.batch(1)),
            "expected an object": ((200, {}, b"[]"), lambda c: c.batch(1)),
            "nested": ((200, {}, b"[" * 100000), lambda c: c.batch(1)),
            "cut or changed": ((200, etag, b"a,b\n"), lambda c: c.export()),
            "not UTF-8": ((200, etag, b"\xff"), lambda c: c.export()),
            "status 302": ((302, {"Location": "/"}, b""), lambda c: c.batch(1)),
            "status 500": ((500, {}, b"oops"), lambda c: c.batch(1)),
            "not a release": ((200, etag, b"a,b\n"), lambda c: c.pull("stable", f"{folder.name}/t")),
        }
        for text, (answer, call) in cases.items():
            with self.subTest(text), self.server(lambda n, _: answer) as c:  # noqa: B023
                with self.assertRaises(ClientError) as error:
                    call(c)
                self.assertIn("not JSON" if text == "nested" else text, str(error.exception))

    def test_limits(self) -> None:
        """The size of a reply and the time of a request are limited."""
        with self.server(lambda n, _: (200, {}, b" " * 200000)) as c, \
                mock.patch.object(client_http, "REPLY_MAX", 100000), \
                self.assertRaisesRegex(ClientError, "the reply exceeds"):
            c.batch(1)
        with self.server(lambda n, _: (200, {}, b" " * 200000)) as c, \
                mock.patch.object(client_http, "REPLY_MAX", 100000), \
                Client(c._connection.url + "/farm") as behind_proxy, \
                self.assertRaisesRegex(ClientError, r"^GET http://127.0.0.1:\d+/farm/api/v1/batches/1: "):
            behind_proxy.batch(1)
        silent = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(silent.close)
        before = time.monotonic()
        with Client(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.3) as c, \
                self.assertRaisesRegex(ClientError, "timed out|no reply"):
            c.batch(1)
        self.assertLess(time.monotonic() - before, 10)

    def test_arguments(self) -> None:
        for url in ("farm:8080", "ftp://farm", "https://", "https://u@farm"):
            with self.subTest(url), self.assertRaisesRegex(ValueError, "expected https://host:port"):
                Client(url)
        with self.assertRaisesRegex(ValueError, "not an access token"):
            Client(token="a\nb")
        silent = socket.create_server(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        silent.close()
        with self.assertRaisesRegex(ClientError, "check that moefarmd runs there"):
            Client(f"http://127.0.0.1:{port}", timeout_s=1).batch(1)


if __name__ == "__main__":
    unittest.main()
