#!/usr/bin/env python3
"""`octavo serve` on the real model as its users' own clients see it: openai, LangChain, LiteLLM, lm-eval
and curl.

    python3 tests/clients/run.py OCTAVO MODEL [ENVIRONMENT]

Installs requirements.txt into ENVIRONMENT (default build/clients) once. Exits with 77 and says why where it cannot:
PyPI is not reachable, or there is no model.
"""
import hashlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 77
NAME = "smollm2"


def skip(reason):
    print("skipped:", reason)
    sys.exit(SKIPPED)


def pip(python, *arguments):
    command = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def environment(folder):
    """The Python of the environment, made where requirements or interpreter have changed."""
    python, stamp = folder / "bin/python", folder / "installed"
    requirements = HERE / "requirements.txt"
    wanted = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
    with tempfile.TemporaryDirectory() as scratch:
        probe = pip(python, "download", "--quiet", "--retries", "1", "--timeout", "10", "--no-deps", "--dest", scratch,
                    "sniffio==1.3.1")
    if probe.returncode != 0:
        skip("PyPI is not reachable: " + (probe.stderr.strip().splitlines() or ["pip says nothing"])[-1])
    start = time.monotonic()
    installed = pip(python, "install", "--quiet", "--no-deps", "--no-compile", "--only-binary", ":all:",
                    "--requirement", requirements)
    if installed.returncode != 0:
        sys.exit("pip install failed:\n" + installed.stderr)
    stamp.write_text(wanted)
    print(f"installed {requirements.name} in {time.monotonic() - start:.0f} s", flush=True)
    return python


class Server:
    def __init__(self, octavo, model):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.process = subprocess.Popen([
            octavo, "serve", model, "--port", "0", "--quantization", "fp8", "--served-model-name", NAME,
            "--max-model-len", "2048", "--memory-limit", "2GB"
        ],
                                        stdout=self.log,
                                        stderr=self.log)
        self.url = None
        for _ in range(1200):
            found = re.search(r"Listening on (http://127\.0\.0\.1:\d+)", self.text())
            if found and self.ready(found[1]):
                self.url = found[1]
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        self.stop()
        sys.exit("the server is not ready:\n" + self.text())

    def text(self):
        return pathlib.Path(self.log.name).read_text()

    @staticmethod
    def ready(url):
        try:
            return urllib.request.urlopen(url + "/health", timeout=10).status == 200
        except urllib.error.URLError:
            return False

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)
        return self.process.returncode


def main():
    octavo, model = sys.argv[1:3]
    folder = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else HERE.parent.parent / "build/clients"
    if not (pathlib.Path(model) / "config.json").exists():
        skip(f"there is no model at {model}; ./start makes it")
    python = environment(folder)
    server = Server(octavo, model)
    # The clients may reach this server and nothing else: a call home would fail loudly.
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "OCTAVO_URL": server.url,
        "OCTAVO_MODEL": NAME,
        "OCTAVO": str(pathlib.Path(octavo).resolve()),
        "OCTAVO_FOLDER": str(pathlib.Path(model).resolve()),
        "OPENAI_BASE_URL": server.url + "/v1",
        "OPENAI_API_KEY": "none",
        "no_proxy": "127.0.0.1",
        "LANGSMITH_TRACING": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HOME": str(folder / "huggingface"),
        "TQDM_DISABLE": "1"
    }
    failed = []
    try:
        for name in ("curl.sh", "openai_client.py", "langchain_client.py", "litellm_client.py", "lm_eval_client.py"):
            start = time.monotonic()
            print(f"-- {name}", flush=True)
            program = "bash" if name.endswith(".sh") else str(python)
            code = subprocess.run([program, str(HERE / name)], env=variables, timeout=300).returncode
            print(f"-- {name}: {'passed' if code == 0 else 'FAILED'} in {time.monotonic() - start:.1f} s", flush=True)
            failed += [name] if code else []
            if server.process.poll() is not None:
                sys.exit(f"the server ended during {name}:\n" + server.text())
    finally:
        code = server.stop()
    if code != 0:
        failed.append(f"the server's exit ({code})")
    if failed:
        sys.exit("failed: " + ", ".join(failed) + "\n" + server.text())


if __name__ == "__main__":
    main()
