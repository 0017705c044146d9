package backend

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// ParseOptions reads net-conf.json's Backend object into the struct that into points to, keys case-insensitive
// as flannel takes them. It returns one sentence for each key that the struct does not have: a typo must not
// be ignored silently.
func ParseOptions(options json.RawMessage, into any) (warnings []string, err error) {
	if len(bytes.TrimSpace(options)) == 0 {
		return nil, nil
	}
	var keys map[string]json.RawMessage
	if err := cmp.Or(json.Unmarshal(options, &keys), json.Unmarshal(options, into)); err != nil {
		return nil, fmt.Errorf("net-conf Backend: %w", explainType(err))
	}
	known := fieldNames(into)
	for key := range keys {
		if !known[strings.ToLower(key)] && !strings.EqualFold(key, "Type") {
			warnings = append(warnings, fmt.Sprintf("net-conf Backend has an unknown key %q, it is ignored", key))
		}
	}
	slices.Sort(warnings)
	return warnings, nil
}

func fieldNames(into any) map[string]bool {
	t, names := reflect.TypeOf(into).Elem(), map[string]bool{}
	for i := range t.NumField() {
		names[strings.ToLower(t.Field(i).Name)] = true
	}
	return names
}

// explainType turns Go's words about a value of the wrong type into net-conf's.
func explainType(err error) error {
	if e, ok := err.(*json.UnmarshalTypeError); ok {
		if e.Field == "" {
			return fmt.Errorf("a JSON %s, want an object", e.Value)
		}
		return fmt.Errorf("%s is a JSON %s, want %s", e.Field, e.Value, article(e.Type.Kind()))
	}
	return err
}

func article(k reflect.Kind) string {
	switch k {
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	}
	return "a " + k.String()
}
