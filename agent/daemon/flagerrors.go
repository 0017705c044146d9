package daemon

import (
	"errors"
	"flag"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/twill-net/twill/internal/jsonobject"
)

// Package flag's own words about an unknown flag, and about a value that it cannot read, which say nothing of what would be
// right.
var (
	unknownFlag = regexp.MustCompile(`^flag provided but not defined: -+(\S+)$`)
	badValue    = regexp.MustCompile(`for (?:flag )?-(\S+): (?:parse error|value out of range)$`)
)

// explainFlag says what would be right, of an error of package flag.
func explainFlag(fs *flag.FlagSet, err error) error {
	text := err.Error()
	if found := unknownFlag.FindStringSubmatch(text); found != nil {
		var known []string
		fs.VisitAll(func(f *flag.Flag) { known = append(known, f.Name) })
		if name := jsonobject.Nearest(found[1], known); name != "" {
			text += ": did you mean --" + name + "?"
		}
	}
	if found := badValue.FindStringSubmatch(text); found != nil {
		text = text[:strings.LastIndex(text, ": ")] + ": want " + wanted(fs.Lookup(found[1]))
	}
	return errors.New(text)
}

// wanted returns what a flag's values are.
func wanted(f *flag.Flag) string {
	switch f.Value.(flag.Getter).Get().(type) {
	case bool:
		return "true or false"
	case time.Duration:
		return "a time such as 30s"
	}
	return "a whole number"
}

// setFlag sets a flag as the environment says.
func setFlag(fs *flag.FlagSet, name, value string) error {
	err := fs.Set(name, value)
	if err == nil || !badValue.MatchString(fmt.Sprintf("for -%s: %v", name, err)) {
		return err
	}
	return errors.New("want " + wanted(fs.Lookup(name)))
}
