#!/bin/bash
# Makes the wheel, installs it in a root file system that holds only Python (tests/deploy/python_root.py) as
# one user, and runs a layer on the CPU there as this user, as root and as another user. Checks RECORD, the
# licences, the platform tag, that two wheels are equal, and that removing the package removes all files.
set -euo pipefail
export MF_SOURCE_DIR=${1:?check_wheel.sh SOURCE BUILD} MF_BINARY_DIR=${2:?check_wheel.sh SOURCE BUILD}
here=$MF_SOURCE_DIR/tests/deploy
[ -n "${3-}" ] || exec "$here/in_copy.sh" "$here/check_wheel.sh" "$@" --inside

cd /tmp
fail() {
    echo "check_wheel: $*" >&2
    tail -n 20 /tmp/*.log >&2 || true
    exit 1
}
# inside USER COMMAND…: runs a command in the root file system
inside() {
    local user=$1
    shift
    chroot --userspec="$user:$user" --groups= root /usr/bin/env -i HOME=/home PATH=/usr/bin:/bin "$@"
}

echo "== make"
for folder in first second; do
    python3 "$MF_SOURCE_DIR/scripts/wheel.py" "$MF_BINARY_DIR" $folder >wheel.log 2>&1 ||
        fail "wheel.py failed"
done
wheel=$(basename first/*.whl)
cmp "first/$wheel" "second/$wheel" || fail "two wheels of one build differ"
[[ $wheel =~ ^moefarm-[0-9.]+-py3-none-manylinux_2_[0-9]+_$(uname -m)\.whl$ ]] ||
    fail "the wheel's name is $wheel"

echo "== install"
status=0
"$here/python_root.py" /tmp/root >root.log 2>&1 || status=$?
[ $status != 77 ] || { cat root.log; exit 77; }
[ $status = 0 ] || fail "no root file system"
mount -t proc proc root/proc
mount --rbind /dev root/dev
mkdir root/home root/env
chown 1001:1001 root/home root/env
chmod 1777 root/tmp
cp "first/$wheel" root/tmp
cp "$here/wheel_layer.py" "$here/wheel_record.py" root/tmp
inside 1001 python3 -m venv /env >venv.log 2>&1 || fail "no virtual environment"
before=$(cd root/env && find . -type f ! -name '*.pyc' | sort)
inside 1001 /env/bin/pip install --no-index --disable-pip-version-check "/tmp/$wheel" >pip.log 2>&1 ||
    fail "pip install failed"
inside 1001 /env/bin/python /tmp/wheel_record.py >record.log 2>&1 || fail "RECORD or the licences are wrong"
inside 1001 /env/bin/python -c 'import moefarm, sys; moefarm.Client; assert "torch" not in sys.modules' \
    >import.log 2>&1 || fail "import moefarm fails without torch"

echo "== use"
lib=$(echo root/env/lib/python3*/site-packages/moefarm/lib)
loader=$(compgen -G 'root/lib*/ld-linux-*' | head -n 1)
for file in "$lib"/*; do
    inside 1001 "${loader#root}" --list "${file#root}" >libraries.log 2>&1 ||
        fail "$file needs a library that is missing"
    while read -r path; do
        [[ $path == /env/* || $path =~ /(libc|libm|ld-linux-[a-z0-9-]+)\.so\.[0-9]+$ ]] ||
            fail "$file loads $path, which is neither in the wheel nor of glibc"
    done < <(grep -oE '/[^ ]+\.so[^ ]*' libraries.log)
done
for user in 0 1001 1002; do # the environment belongs to user 1001
    inside $user /env/bin/python /tmp/wheel_layer.py >layer.log 2>&1 || fail "the layer fails for user $user"
    grep -q '^/env/.*moefarm/lib/libfmoe.so: .*relative error 0.00' layer.log || fail "$(cat layer.log)"
    # without a driver, the module of the wheel must at least be found and loaded
    inside $user /env/bin/python - >gpu.log 2>&1 <<'END' || fail "no message about the missing driver"
import ctypes
from moefarm import _library
error, handle = _library.ErrorText(), ctypes.c_void_p()
_library.load().fmoe_open(b"hip:nvidia:0", None, 0, ctypes.byref(error), ctypes.byref(handle))
assert b"libcuda.so.1 not found" in error.text, error.text
END
done

echo "== remove"
inside 1001 /env/bin/pip uninstall -y moefarm >pip.log 2>&1 || fail "pip uninstall failed"
after=$(cd root/env && find . -type f ! -name '*.pyc' | sort)
[ "$before" = "$after" ] || fail "left behind: $(diff <(echo "$before") <(echo "$after"))"
cat layer.log wheel.log
