package plugin

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// fields is one JSON object that is read key by key, in any case of letters (runtimes differ), and that knows
// in the end which keys nobody asked for.
type fields struct {
	path   string // what stands before a key in messages: "delegate."
	values map[string]json.RawMessage
	names  map[string]string // the keys as they were written
	errs   []error
}

func parseFields(path string, data []byte) (*fields, error) {
	var values map[string]json.RawMessage
	if err := json.Unmarshal(data, &values); err != nil {
		return nil, err
	}
	f := &fields{path: path, values: map[string]json.RawMessage{}, names: map[string]string{}}
	for name, v := range values {
		key := strings.ToLower(name)
		f.values[key], f.names[key] = v, name
	}
	return f, nil
}

// take is the value of key as it stands there, nil if it is absent.
func (f *fields) take(key string) json.RawMessage {
	key = strings.ToLower(key)
	v := f.values[key]
	delete(f.values, key)
	return v
}

// raw is the value of key, nil if it is absent or null.
func (f *fields) raw(key string) json.RawMessage {
	if v := f.take(key); string(v) != "null" {
		return v
	}
	return nil
}

// get decodes the value of key into dst and says whether there was a good one; want says what is good.
func (f *fields) get(key, want string, dst any) bool {
	v := f.raw(key)
	if v == nil {
		return false
	}
	if json.Unmarshal(v, dst) != nil {
		f.bad(key, v, want)
		return false
	}
	return true
}

func (f *fields) bad(key string, value []byte, want string) {
	f.errs = append(f.errs, fmt.Errorf("%s%s is %s: want %s", f.path, key, value, want))
}

// unknown is one sentence for each key that was not taken.
func (f *fields) unknown() []string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(f.values)) {
		all = append(all, fmt.Sprintf("%s%s is not a setting of twill and has no effect", f.path, f.names[key]))
	}
	return all
}
