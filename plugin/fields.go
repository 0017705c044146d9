package plugin

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/twill-net/twill/internal/jsonobject"
)

// fields is one JSON object that is read key by key.
type fields struct {
	jsonobject.Object
	path string   // what precedes a key in messages: "delegate."
	errs *[]error // also of the objects in this one
}

func parseFields(path string, data []byte, errs *[]error) (*fields, error) {
	o, err := jsonobject.Parse(data)
	return &fields{o, path, errs}, err
}

// get decodes the value of key into dst and reports whether there was a good one, which check accepts; want
// describes good ones.
func (f *fields) get(key string, dst any, want string, check ...func() bool) bool {
	v := f.Raw(key)
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
	v := f.Raw(key)
	if v == nil {
		v = json.RawMessage("{}")
	}
	o, err := parseFields(f.path+key+".", v, f.errs)
	if err != nil {
		f.bad(key, v, want)
	}
	return o
}

// items reads the objects of the list that is the value of key.
func (f *fields) items(key string, raw json.RawMessage, want string) (all []*fields) {
	var items []json.RawMessage
	if raw != nil && json.Unmarshal(raw, &items) != nil {
		f.bad(key, raw, want)
	}
	for i, item := range items {
		at := fmt.Sprintf("%s[%d]", key, i)
		o, err := parseFields(f.path+at+".", item, f.errs)
		if err != nil {
			f.bad(at, item, "an object")
			continue
		}
		all = append(all, o)
	}
	return all
}

func (f *fields) bad(key string, value []byte, want string) {
	*f.errs = append(*f.errs, fmt.Errorf("%s%s is %s: want %s", f.path, key, value, want))
}

// unknown returns one sentence for each key that was not read.
func (f *fields) unknown() []string {
	var all []string
	for _, key := range f.Rest() {
		all = append(all, fmt.Sprintf("%s%s is not a setting of twill and has no effect%s", f.path, key, f.Hint(key)))
	}
	return all
}
