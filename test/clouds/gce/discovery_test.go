package gce

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/api/googleapi"
)

// discovery is Google's description of the compute API.
type discovery struct {
	ServicePath string              `json:"servicePath"`
	Parameters  map[string]*schema  `json:"parameters"`
	Schemas     map[string]*schema  `json:"schemas"`
	Resources   map[string]resource `json:"resources"`
}

type resource struct {
	Methods map[string]*method `json:"methods"`
}

type method struct {
	ID         string             `json:"id"`
	HTTPMethod string             `json:"httpMethod"`
	Path       string             `json:"path"`
	Parameters map[string]*schema `json:"parameters"`
	Request    schema             `json:"request"`
	Response   schema             `json:"response"`

	path  *regexp.Regexp
	names []string // of the path's parameters
}

// schema describes a value.
type schema struct {
	Ref                  string             `json:"$ref"`
	Type                 string             `json:"type"`
	Format               string             `json:"format"`
	Pattern              string             `json:"pattern"`
	Enum                 []string           `json:"enum"`
	Items                *schema            `json:"items"`
	Properties           map[string]*schema `json:"properties"`
	AdditionalProperties *schema            `json:"additionalProperties"`
	Location             string             `json:"location"`
	Required             bool               `json:"required"`
	ReadOnly             bool               `json:"readOnly"`
	Description          string             `json:"description"`
}

// describe reads the description out of the folder of Google's module.
var describe = sync.OnceValues(func() (*discovery, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "google.golang.org/api").Output()
	if err != nil {
		return nil, fmt.Errorf("find the module: %w", err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "compute/v1/compute-api.json"))
	if err != nil {
		return nil, err
	}
	var d discovery
	if err := json.Unmarshal(text, &d); err != nil {
		return nil, err
	}
	part := regexp.MustCompile(`\{(\w+)\}`)
	for _, r := range d.Resources {
		for _, m := range r.Methods {
			for _, p := range part.FindAllStringSubmatch(m.Path, -1) {
				m.names = append(m.names, p[1])
			}
			m.path = regexp.MustCompile("^/" + d.ServicePath + part.ReplaceAllString(m.Path, "([^/]+)") + "$")
		}
	}
	return &d, nil
})

// judge passes requests on, and fails the test where a request or its answer is not as described.
type judge struct {
	*discovery
	next http.Handler

	mu     sync.Mutex
	faults []string
	seen   map[string]int // by method's ID and status
}

func newJudge(t *testing.T, next http.Handler) *judge {
	t.Helper()
	d, err := describe()
	if err != nil {
		t.Fatalf("read Google's description of the compute API: %v", err)
	}
	return &judge{discovery: d, next: next, seen: map[string]int{}}
}

// ServeHTTP implements http.Handler.
func (j *judge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.URL.Path, "/compute/") {
		j.next.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	answer := httptest.NewRecorder()
	j.next.ServeHTTP(answer, r)
	m, wrong := j.request(r, body)
	if m != nil {
		wrong = append(wrong, j.answer(m, answer)...)
	}
	j.mu.Lock()
	for _, text := range wrong {
		j.faults = append(j.faults, fmt.Sprintf("%s %s: %s", r.Method, r.URL, text))
	}
	if m != nil {
		j.seen[fmt.Sprintf("%s %d", m.ID, answer.Code)]++
	}
	j.mu.Unlock()
	for name, values := range answer.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

// verdict fails the test for each fault, and returns what was called.
func (j *judge) verdict(t *testing.T) map[string]int {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, f := range j.faults {
		t.Errorf("not as Google describes it: %s", f)
	}
	return j.seen
}

// request finds the method of a request, and returns what is wrong with it.
func (j *judge) request(r *http.Request, body []byte) (found *method, wrong []string) {
	var values []string
	for _, resource := range j.Resources {
		for _, m := range resource.Methods {
			if v := m.path.FindStringSubmatch(r.URL.Path); v != nil && m.HTTPMethod == r.Method {
				found, values = m, v[1:]
			}
		}
	}
	if found == nil {
		return nil, []string{"there is no such method"}
	}
	query := r.URL.Query()
	for i, name := range found.names {
		query.Set(name, values[i])
	}
	wrong = j.parameters(found, query)
	if found.Request.Ref == "" {
		if len(body) > 0 {
			wrong = append(wrong, "it has a body")
		}
		return found, wrong
	}
	var value any
	if err := decode(body, &value); err != nil {
		return found, append(wrong, "its body is not JSON: "+err.Error())
	}
	return found, append(wrong, j.value(&found.Request, value, "body", true)...)
}

func (j *judge) parameters(m *method, query url.Values) (wrong []string) {
	for name, values := range query {
		p := m.Parameters[name]
		if p == nil {
			p = j.Parameters[name]
		}
		if p == nil || len(values) != 1 {
			wrong = append(wrong, fmt.Sprintf("parameter %s: %d values, known %t", name, len(values), p != nil))
			continue
		}
		_, err := strconv.ParseUint(values[0], 10, 32)
		if p.Type == "integer" && err != nil || p.Type == "boolean" && values[0] != "true" && values[0] != "false" ||
			p.Pattern != "" && !whole(p.Pattern).MatchString(values[0]) || len(p.Enum) > 0 && !slices.Contains(p.Enum, values[0]) {
			wrong = append(wrong, fmt.Sprintf("parameter %s is %q, want %s %s %v", name, values[0], p.Type, p.Pattern, p.Enum))
		}
	}
	for name, p := range m.Parameters {
		if p.Required && !query.Has(name) {
			wrong = append(wrong, "no parameter "+name)
		}
	}
	return wrong
}

func whole(pattern string) *regexp.Regexp { return regexp.MustCompile("^(?:" + pattern + ")$") }

// decode keeps numbers as they are written.
func decode(text []byte, to *any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return d.Decode(to)
}

// value returns what is wrong with a value. What a caller writes must not be the server's to say.
func (j *judge) value(s *schema, v any, at string, written bool) (wrong []string) {
	if s.Ref != "" {
		s = j.Schemas[s.Ref]
	}
	if written && (s.ReadOnly || strings.HasPrefix(s.Description, "Output only.")) {
		return []string{at + " is the server's to say"}
	}
	bad := func(want string) []string { return []string{fmt.Sprintf("%s is %v (%T), want %s", at, v, v, want)} }
	switch s.Type {
	case "object":
		fields, ok := v.(map[string]any)
		if !ok {
			return bad("an object")
		}
		for name, field := range fields {
			switch p := s.Properties[name]; {
			case p != nil:
				wrong = append(wrong, j.value(p, field, at+"."+name, written)...)
			case s.AdditionalProperties != nil:
				wrong = append(wrong, j.value(s.AdditionalProperties, field, at+"."+name, written)...)
			default:
				wrong = append(wrong, at+"."+name+" does not exist")
			}
		}
		return wrong
	case "array":
		items, ok := v.([]any)
		if !ok {
			return bad("an array")
		}
		for i, item := range items {
			wrong = append(wrong, j.value(s.Items, item, fmt.Sprintf("%s[%d]", at, i), written)...)
		}
		return wrong
	case "string":
		text, ok := v.(string)
		_, err := strconv.ParseUint(text, 10, 64)
		if !ok || s.Pattern != "" && !whole(s.Pattern).MatchString(text) || len(s.Enum) > 0 && !slices.Contains(s.Enum, text) ||
			s.Format == "uint64" && err != nil {
			return bad(fmt.Sprintf("a string %s %s %v", s.Pattern, s.Format, s.Enum))
		}
	case "integer":
		n, ok := v.(json.Number)
		if _, err := strconv.ParseInt(n.String(), 10, 64); !ok || err != nil {
			return bad("an integer")
		}
	case "boolean":
		if _, ok := v.(bool); !ok {
			return bad("true or false")
		}
	default:
		return bad("a type that this test knows, not " + s.Type)
	}
	return nil
}

// answer returns what is wrong with an answer. Errors are read by Google's own client.
func (j *judge) answer(m *method, a *httptest.ResponseRecorder) (wrong []string) {
	if a.Code != http.StatusOK {
		e := (*googleapi.Error)(nil)
		if err := googleapi.CheckResponse(a.Result()); !errors.As(err, &e) || e.Message == "" || e.Code != a.Code ||
			len(e.Errors) == 0 || e.Errors[0].Reason == "" {
			wrong = append(wrong, fmt.Sprintf("Google's client reads the error %d as %+v", a.Code, e))
		}
		return wrong
	}
	var value any
	if err := decode(a.Body.Bytes(), &value); err != nil {
		return []string{"its answer is not JSON: " + err.Error()}
	}
	return j.value(&m.Response, value, "answer", false)
}
