package doctor

import (
	"regexp"
	"strings"
)

// forbidden is how Kubernetes refuses: `nodes "a" is forbidden: User "u" cannot get resource "nodes" in API group …`.
var forbidden = regexp.MustCompile(`User "([^"]*)" cannot (\w+) resource "([^"]+)"`)

// apiFinding says what the cluster's API does not like about the agent, and who has to act.
func apiFinding(text string) Finding {
	lower := strings.ToLower(text)
	id, fix := "api-trouble", ""
	m := forbidden.FindStringSubmatch(text)
	switch {
	case strings.Contains(text, "certificate has expired or is not yet valid"):
		id = "clock-skew"
	case m != nil:
		fix = "403: grant " + m[1] + " the verb " + m[2] + " on " + m[3] + ": the ClusterRole of Documentation/twill.yml has it"
	case strings.Contains(lower, "unauthorized"):
		fix = "401: the token is not known: restart the agent's pod so that it gets a new one, or correct its kubeconfig"
	case strings.Contains(lower, "too many requests"):
		fix = "429: the API server is overloaded: look at its priority levels (kubectl get --raw /metrics | grep flowcontrol_rejected)"
	case strings.Contains(lower, "unknown authority"):
		fix = "the API server's certificate is of another authority: correct the kubeconfig's certificate-authority"
	case strings.Contains(lower, "connection refused"), strings.Contains(lower, "deadline exceeded"), strings.Contains(lower, "no route to host"):
		fix = "nobody answers at the API server's address: look whether it runs, and whether this node reaches it"
	}
	return find(id, "the cluster's API", "an answer", text, fix)
}
