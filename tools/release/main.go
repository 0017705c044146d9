// Command release packs what tools/release/build has compiled: container images for several architectures as an OCI
// layout (https://github.com/opencontainers/image-spec/blob/main/image-layout.md), a chart as an OCI artifact, and the
// provenance of all of it.
//
//	release image FILE NAME:VERSION ARCHITECTURE=DIRECTORY[,DIRECTORY…]…
//	release chart FILE CHART.tgz
//	release provenance VERSION COMMIT FILE…
//
// The same input makes the same bytes. All times are SOURCE_DATE_EPOCH
// (https://reproducible-builds.org/specs/source-date-epoch/).
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) < 3 {
		return errors.New("usage: release image FILE NAME:VERSION ARCHITECTURE=DIRECTORY… | chart FILE CHART.tgz | " +
			"provenance VERSION COMMIT FILE…")
	}
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH is %q, want a number of seconds since 1970", os.Getenv("SOURCE_DATE_EPOCH"))
	}
	created := time.Unix(seconds, 0).UTC()
	switch args[0] {
	case "image":
		return writeImages(out, args[1], args[2], created, args[3:])
	case "chart":
		return writeChart(out, args[1], args[2], created)
	case "provenance":
		return writeProvenance(out, args[1], args[2], args[3:])
	}
	return fmt.Errorf("command %q: want image, chart or provenance", args[0])
}
