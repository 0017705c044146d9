package facts

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/twill-net/twill/doctor"
)

// History asks the agent what it remembers. It has to be called in the agent's network namespace.
func History(o Options) (doctor.NodeHistory, error) {
	settings, agent, err := o.settings()
	switch {
	case err != nil:
		return doctor.NodeHistory{}, err
	case !agent.Running:
		return doctor.NodeHistory{}, errors.New("no agent runs here, and what it remembered ended with it")
	case settings.Healthz == "":
		return doctor.NodeHistory{}, errors.New("the agent answers nowhere: its --healthz-port is 0")
	}
	status, text, err := ask(settings.Healthz, "/history")
	if err != nil {
		return doctor.NodeHistory{}, fmt.Errorf("ask the agent: %w", err)
	}
	if status == http.StatusNotFound {
		return doctor.NodeHistory{}, errors.New("the agent is of a version that remembers nothing")
	}
	var h doctor.NodeHistory
	if err := json.Unmarshal([]byte(text), &h); err != nil || status != http.StatusOK {
		return doctor.NodeHistory{}, fmt.Errorf("the agent's answer to /history cannot be read: %d %.100q", status, text)
	}
	return h, nil
}
