// Package jsonobject reads the members of a JSON object one by one, in any case of letters, and knows those that nobody
// read: a key with a typo must not be ignored silently.
package jsonobject

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Object is a JSON object.
type Object struct {
	Repeated []string // the keys that were there more than once, of which the last one counts

	keys   []string                   // as written, each once
	values map[string]json.RawMessage // by lower-case key
	asked  map[string]string          // the keys that somebody asked for, by lower-case key
}

// Parse reads one JSON object. An error names the line and the column in data.
func Parse(data []byte) (Object, error) {
	var all json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		return Object{}, located(data, err)
	}
	dec := json.NewDecoder(bytes.NewReader(all))
	if t, _ := dec.Token(); t != json.Delim('{') {
		return Object{}, fmt.Errorf("the text starts with %s: want a JSON object in braces", Brief(all))
	}
	o := Object{values: map[string]json.RawMessage{}, asked: map[string]string{}}
	for dec.More() { // nothing fails here: all is well-formed
		key, _ := dec.Token()
		var value json.RawMessage
		_ = dec.Decode(&value)
		o.put(key.(string), value)
	}
	return o, nil
}

func (o *Object) put(key string, value json.RawMessage) {
	lower := strings.ToLower(key)
	if _, ok := o.values[lower]; ok {
		o.Repeated = append(o.Repeated, key)
	} else {
		o.keys = append(o.keys, key)
	}
	o.values[lower] = value
}

// Has reports whether key is there and not null.
func (o Object) Has(key string) bool {
	raw, ok := o.values[strings.ToLower(key)]
	return ok && string(raw) != "null"
}

// Take returns the value of key as it is written, nil if it is absent, and takes it out of o.
func (o Object) Take(key string) json.RawMessage {
	lower := strings.ToLower(key)
	if o.asked != nil { // else it is no object, and has no keys
		o.asked[lower] = key
	}
	raw := o.values[lower]
	delete(o.values, lower)
	return raw
}

// Raw takes the value of key like Take, and returns nil for null too.
func (o Object) Raw(key string) json.RawMessage {
	if raw := o.Take(key); string(raw) != "null" {
		return raw
	}
	return nil
}

// Get decodes the value of key into v and reports whether there is one; want completes the error "key value: want …".
func (o Object) Get(key string, v any, want string) (bool, error) {
	raw := o.Raw(key)
	if raw == nil {
		return false, nil
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return false, fmt.Errorf("%s %s: want %s", key, Brief(raw), want)
	}
	return true, nil
}

// Rest returns the keys that were not taken, as they are written.
func (o Object) Rest() []string {
	var rest []string
	for _, key := range o.keys {
		if _, ok := o.values[strings.ToLower(key)]; ok {
			rest = append(rest, key)
		}
	}
	return rest
}

// located turns the byte offset of a syntax error into a line and a column, both from 1.
func located(data []byte, err error) error {
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return err
	}
	// Offset counts the bytes that were read, the offending one included; at the end of input there is none.
	before := data[:min(max(int(syntax.Offset)-1, 0), len(data))]
	if strings.HasPrefix(syntax.Error(), "unexpected end") {
		before = data
	}
	line := bytes.Count(before, []byte("\n")) + 1
	column := len(before) - bytes.LastIndexByte(before, '\n')
	return fmt.Errorf("malformed JSON at line %d, column %d: %w", line, column, err)
}

// Brief returns data in one line of bounded length.
func Brief(data []byte) string {
	var b bytes.Buffer
	if json.Compact(&b, data) != nil {
		b.Write(data)
	}
	if b.Len() > 40 {
		return strings.ToValidUTF8(string(b.Bytes()[:40]), "") + "…"
	}
	return b.String()
}
