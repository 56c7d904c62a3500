#!/bin/bash
# Fetches the status page's charting library into server/page/vendor, with hashes. To change the version, edit
# the package below, run the script, and copy the integrity that it prints if you trust the package.
#
#   scripts/vendor.sh            fetch the package with npm, compare its integrity, replace the files
#   scripts/vendor.sh --check    compare the files with SHA256SUMS; needs no network
set -euo pipefail
cd "$(dirname "$0")/.."
package=uplot@1.6.32
integrity=sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==
files=(dist/uPlot.iife.min.js dist/uPlot.min.css LICENSE)
folder=server/page/vendor
sums=SHA256SUMS
origin="# $package $integrity"

check() {
    cd "$folder"
    sha256sum --check --strict --quiet $sums || {
        echo "vendor: a file in $folder differs from its hash in $sums; run make vendor" >&2
        exit 1
    }
    [ "$(head -n 1 $sums)" = "$origin" ] || {
        echo "vendor: $sums is for another package than $package; run make vendor" >&2
        exit 1
    }
    diff <(sed -n 's/^[0-9a-f]\{64\}  //p' $sums | sort) <(ls -A | grep -vx $sums | sort) >&2 ||
        { echo "vendor: the files of $folder and those that $sums lists differ" >&2; exit 1; }
}

case ${1-} in
--check)
    check
    exit 0
    ;;
'') ;;
*)
    sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac

command -v npm >/dev/null || {
    echo "vendor: npm is missing (Debian package npm)" >&2
    exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
archive=$(npm pack --silent --pack-destination "$work" "$package")
digest='crypto.createHash("sha512").update(fs.readFileSync(process.argv[1])).digest("base64")'
got=sha512-$(node -p "$digest" "$work/$archive")
if [ "$got" != "$integrity" ]; then
    echo "vendor: $package has integrity $got; expected $integrity" >&2
    exit 1
fi
tar -xzf "$work/$archive" -C "$work" "${files[@]/#/package/}"
mkdir -p "$folder"
rm -f "${folder:?}"/*
for file in "${files[@]}"; do
    install -m 644 "$work/package/$file" "$folder/"
done
(
    cd "$folder"
    names=$(ls)
    echo "$origin" >$sums
    sha256sum $names >>$sums
    cat $sums
)
check
