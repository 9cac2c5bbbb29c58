#!/bin/sh
# Makes flights.csv.gz from the npm package vega-datasets 2.2.0. The script writes this file into its own directory. It
# needs npm, tar and gzip. The result is the file data/flights-3m.csv of the package, which is compressed but not
# changed in any other way. The demo uses all five columns of this file.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm pack --silent vega-datasets@2.2.0
tar xzf vega-datasets-2.2.0.tgz package/data/flights-3m.csv
echo "f8d78857e2e74365f7d3df0582ce420b0e9fa096f416ccbd9074e0a2fcb03736  package/data/flights-3m.csv" | sha256sum -c -
gzip -9nc package/data/flights-3m.csv > "$here/flights.csv.gz"
