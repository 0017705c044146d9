package plugin

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// fields is one JSON object that is read key by key, in any case of letters (runtimes differ). What is read
// is taken out.
type fields struct {
	path   string // what precedes a key in messages: "delegate."
	values map[string]json.RawMessage
	names  map[string]string // the keys as they were written
	errs   *[]error          // also of the objects in this one
}

func parseFields(path string, data []byte, errs *[]error) (*fields, error) {
	f := &fields{path, map[string]json.RawMessage{}, map[string]string{}, errs}
	var values map[string]json.RawMessage
	err := json.Unmarshal(data, &values)
	for name, v := range values {
		key := strings.ToLower(name)
		f.values[key], f.names[key] = v, name
	}
	return f, err
}

// take returns the value of key as it is there, nil if it is absent.
func (f *fields) take(key string) json.RawMessage {
	key = strings.ToLower(key)
	v := f.values[key]
	delete(f.values, key)
	return v
}

// raw returns the value of key, nil if it is absent or null.
func (f *fields) raw(key string) json.RawMessage {
	if v := f.take(key); string(v) != "null" {
		return v
	}
	return nil
}

// get decodes the value of key into dst and reports whether there was a good one, which check accepts; want
// describes good ones.
func (f *fields) get(key string, dst any, want string, check ...func() bool) bool {
	v := f.raw(key)
	if v == nil {
		return false
	}
	if json.Unmarshal(v, dst) != nil {
		f.bad(key, v, want)
		return false
	}
	for _, good := range check {
		if !good() {
			f.bad(key, []byte(strings.Trim(string(v), `"`)), want)
			return false
		}
	}
	return true
}

// object returns the object that is the value of key, an empty one if there is none.
func (f *fields) object(key, want string) *fields {
	v := f.raw(key)
	if v == nil {
		v = json.RawMessage("{}")
	}
	o, err := parseFields(f.path+key+".", v, f.errs)
	if err != nil {
		f.bad(key, v, want)
	}
	return o
}

func (f *fields) bad(key string, value []byte, want string) {
	*f.errs = append(*f.errs, fmt.Errorf("%s%s is %s: want %s", f.path, key, value, want))
}

// unknown returns one sentence for each key that was not read.
func (f *fields) unknown() []string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(f.values)) {
		all = append(all, fmt.Sprintf("%s%s is not a setting of twill and has no effect", f.path, f.names[key]))
	}
	return all
}
