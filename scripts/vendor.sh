#!/bin/bash
# The page's charting library: a package at a version, of which these files are kept in server/page/vendor with their hashes.
# For another version change the line below, run, and take over the integrity that it prints once the package is trusted.
#
#   scripts/vendor.sh            fetch the package again with npm, compare its integrity, replace the files
#   scripts/vendor.sh --check    are the files those that SHA256SUMS lists, and no others? Needs no network
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
    sha256sum --check --strict --quiet $sums || { echo "vendor: a file in $folder is not what $sums lists: make vendor" >&2; exit 1; }
    [ "$(head -n 1 $sums)" = "$origin" ] || { echo "vendor: $sums is not of $package, which scripts/vendor.sh names: make vendor" >&2; exit 1; }
    diff <(sed -n 's/^[0-9a-f]\{64\}  //p' $sums | sort) <(ls -A | grep -vx $sums | sort) >&2 ||
        { echo "vendor: a file of $folder is not listed in $sums, or one that is listed is missing" >&2; exit 1; }
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

command -v npm >/dev/null || { echo "vendor: npm is missing (Debian's package npm); only fetching the files again needs it" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
archive=$(npm pack --silent --pack-destination "$work" "$package")
got=sha512-$(node -p 'crypto.createHash("sha512").update(fs.readFileSync(process.argv[1])).digest("base64")' "$work/$archive")
if [ "$got" != "$integrity" ]; then
    echo "vendor: $package has the integrity $got, scripts/vendor.sh expects $integrity" >&2
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
