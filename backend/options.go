package backend

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	"github.com/twill-net/twill/internal/jsonobject"
)

// ParseOptions reads net-conf.json's Backend object into the struct that into points to, keys case-insensitive
// as flannel takes them. It returns one sentence for each key that the struct does not have: a typo must not
// be ignored silently.
func ParseOptions(options json.RawMessage, into any) (warnings []string, err error) {
	if text := bytes.TrimSpace(options); len(text) == 0 || string(text) == "null" {
		return nil, nil
	}
	if err := json.Unmarshal(options, into); err != nil {
		return nil, fmt.Errorf("net-conf Backend: %w", explainType(err))
	}
	o, err := jsonobject.Parse(options)
	if err != nil {
		return nil, fmt.Errorf("net-conf Backend: %w", err)
	}
	o.Take("Type")
	for t, i := reflect.TypeOf(into).Elem(), 0; i < t.NumField(); i++ {
		o.Take(t.Field(i).Name)
	}
	for _, key := range o.Rest() {
		warnings = append(warnings, fmt.Sprintf("net-conf Backend has an unknown key %q, it is ignored%s", key, o.Hint(key)))
	}
	slices.Sort(warnings)
	return warnings, nil
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
	case reflect.Uint32:
		return "a whole number from 0 to 4294967295"
	}
	return "a " + k.String()
}
