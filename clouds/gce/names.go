package gce

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/twill-net/twill/subnet"
)

// resources is how full names of resources begin. Every service of Google takes it, whatever address the API has.
const resources = "https://www.googleapis.com/compute/v1/"

var (
	nameForm    = regexp.MustCompile(`^[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?$`)
	partForm    = regexp.MustCompile(`^[a-z0-9](?:[-a-z0-9.:]{0,98}[a-z0-9])?$`) // example.com:project-1 is one, too
	emailForm   = regexp.MustCompile(`^[-a-zA-Z0-9._]+@[-a-zA-Z0-9.]+$`)
	networkForm = regexp.MustCompile(`^projects/([^/]+)/(?:global/)?networks/([^/]+)$`)
)

func isName(s string) bool { return nameForm.MatchString(s) }

func isPart(s string) bool { return partForm.MatchString(s) }

// network is a network: the project that its routes belong to, by ID or number, and its name.
type network struct{ project, name string }

func parseNetwork(path string) (network, error) {
	m := networkForm.FindStringSubmatch(path)
	if m == nil || !isPart(m[1]) || !isName(m[2]) {
		return network{}, fmt.Errorf("%q is not a network of Google Compute Engine: want projects/PROJECT/global/networks/NAME",
			oneLine(path))
	}
	return network{m[1], m[2]}, nil
}

func (n network) path() string { return "projects/" + n.project + "/global/networks/" + n.name }

func (n network) routes() string { return "projects/" + n.project + "/global/routes" }

// has reports whether a network's full name is this one's. A project may be named by its number or its ID; all routes that a
// project lists are of networks of its own, so the name suffices.
func (n network) has(full string) bool { return full[strings.LastIndex(full, "/")+1:] == n.name }

// resource returns the path of a resource without the address of the API.
func resource(full string) string {
	if i := strings.Index(full, "/projects/"); i >= 0 && strings.Contains(full, "://") {
		return full[i+1:]
	}
	return full
}

// routeName returns the name of Twill's route to a prefix. Names are a project's, so it tells networks apart, and pools.
// Two nodes that make a route to one prefix at the same time choose the same name, which only one of them gets.
func routeName(n network, dst netip.Prefix, pools []subnet.Pool) string {
	of := dst
	if i := slices.IndexFunc(pools, func(p subnet.Pool) bool { return p.Fits(dst) }); i >= 0 {
		of = pools[i].Network
	}
	sum := sha256.Sum256([]byte(n.name + " " + of.String()))
	return fmt.Sprintf("twill-%x-%s", sum[:4], strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(dst.String()))
}

// filter is a condition of a list; value is a regular expression.
func filter(field, value string) string { return fmt.Sprintf("%s eq %q", field, value) }

// quote returns a regular expression for a prefix.
func quote(prefix string) string { return strings.ReplaceAll(prefix, ".", "[.]") }

// oneLine returns a text of somebody else's as part of a message: short, in one line, without control characters.
func oneLine(s string) string {
	control := func(r rune) bool { return r < ' ' || r >= 0x7f && r <= 0x9f }
	s = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, "?"), control), " ")
	if r := []rune(s); len(r) > 400 {
		return string(r[:400]) + "…"
	}
	return s
}
