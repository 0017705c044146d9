package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"
)

// row is a line of the ledger's table: when, package, test, cause.
var row = regexp.MustCompile(`(?m)^\| (\S+) \| (\S+) \| (\S+) \|(.*)\|$`)

// fixed begins the cause of a row that counts no more.
const fixed = "fixed"

// record appends a row for each flake to the ledger, and returns the tests that have more than one row that
// is not fixed.
func record(path string, now time.Time, flaky []flake) (twice []test, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	rows := ""
	for _, f := range flaky {
		rows += fmt.Sprintf("| %s | %s | %s | |\n", now.UTC().Format(time.DateOnly), f.Package, f.Name)
	}
	if rows != "" {
		if err := appendTo(path, rows); err != nil {
			return nil, err
		}
	}
	count := map[test]int{}
	for _, m := range row.FindAllStringSubmatch(string(text)+rows, -1) {
		if strings.HasPrefix(strings.TrimSpace(m[4]), fixed) {
			continue
		}
		at := test{m[2], m[3]}
		if count[at]++; count[at] == 2 {
			twice = append(twice, at)
		}
	}
	return twice, nil
}

func appendTo(path, text string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
