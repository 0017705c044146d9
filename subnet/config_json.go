package subnet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// object is a JSON object that remembers how its keys were written, and in which order.
type object struct {
	keys     []string                   // as written, each once
	values   map[string]json.RawMessage // by lower-case key; the last one of a repeated key
	repeated []string                   // a warning for each repeated key
}

// parseObject reads one JSON object; an error says where in data it went wrong.
func parseObject(data []byte) (object, error) {
	var all json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		return object{}, located(data, err)
	}
	dec := json.NewDecoder(bytes.NewReader(all))
	if t, _ := dec.Token(); t != json.Delim('{') {
		return object{}, fmt.Errorf("the text starts with %s: want a JSON object in braces", brief(all))
	}
	o := object{values: map[string]json.RawMessage{}}
	for dec.More() { // nothing fails here: all is well-formed
		key, _ := dec.Token()
		var value json.RawMessage
		_ = dec.Decode(&value)
		o.put(key.(string), value)
	}
	return o, nil
}

func (o *object) put(key string, value json.RawMessage) {
	lower := strings.ToLower(key)
	if _, ok := o.values[lower]; ok {
		o.repeated = append(o.repeated, fmt.Sprintf("key %q is there more than once: the last one counts", key))
	} else {
		o.keys = append(o.keys, key)
	}
	o.values[lower] = value
}

// has reports whether key is there and not null.
func (o object) has(key string) bool {
	raw, ok := o.values[strings.ToLower(key)]
	return ok && string(raw) != "null"
}

// get reads key into v and reports whether it is there; want completes the error "key value: want …".
func (o object) get(key string, v any, want string) (bool, error) {
	if !o.has(key) {
		return false, nil
	}
	raw := o.values[strings.ToLower(key)]
	if err := json.Unmarshal(raw, v); err != nil {
		return false, fmt.Errorf("%s %s: want %s", key, brief(raw), want)
	}
	return true, nil
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

// brief returns data in one line of bounded length.
func brief(data []byte) string {
	var b bytes.Buffer
	if json.Compact(&b, data) != nil {
		b.Write(data)
	}
	if b.Len() > 40 {
		return strings.ToValidUTF8(string(b.Bytes()[:40]), "") + "…"
	}
	return b.String()
}
