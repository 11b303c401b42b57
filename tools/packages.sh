# Sourced by start and check: the Debian packages that Octavo needs, installed where they are missing.

OCTAVO_PACKAGES="g++ cmake ninja-build pkg-config ccache libfmt-dev libexpected-dev nlohmann-json3-dev libcli11-dev \
libeigen3-dev libpcre2-dev libutf8proc-dev libxxhash-dev libboost1.81-dev libssl-dev libgtest-dev python3 python3-pip"

# need_packages PACKAGE...: installs the missing ones as root, or names them.
need_packages() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  if [ "$(id -u)" -ne 0 ]; then
    echo "These Debian packages are missing; install them and run this again:" >&2
    echo "  sudo apt-get install ${missing[*]}" >&2
    exit 1
  fi
  echo "Installing ${missing[*]}"
  DEBIAN_FRONTEND=noninteractive apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}
