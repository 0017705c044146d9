package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"

	"github.com/twill-net/twill/subnet"
)

// configMap is where the manifest has the network config.
const configMap = "twill"

// storeConfig is the network config of a cluster.
type storeConfig struct {
	version string // of the ConfigMap
	text    string
	network subnet.Config
}

// config reads the network config.
func (m storeMigration) config(ctx context.Context) (conf storeConfig, err error) {
	out, err := m.cluster.Kubectl(ctx, "get", "configmaps", configMap, "--namespace="+m.cluster.Namespace, "--output=json")
	if err != nil {
		return conf, err
	}
	var read struct {
		Metadata struct{ ResourceVersion string }
		Data     map[string]string
	}
	if err := json.Unmarshal(out, &read); err != nil {
		return conf, fmt.Errorf("read the ConfigMap %s/%s: %w", m.cluster.Namespace, configMap, err)
	}
	text, ok := read.Data["net-conf.json"]
	if !ok {
		return conf, fmt.Errorf("the ConfigMap %s/%s has no net-conf.json: where the network config is a Secret, "+
			"write the key Store there and restart the agents", m.cluster.Namespace, configMap)
	}
	network, err := subnet.ParseConfig([]byte(text))
	if err != nil {
		return conf, fmt.Errorf("net-conf.json of the ConfigMap %s/%s: %w", m.cluster.Namespace, configMap, err)
	}
	return storeConfig{read.Metadata.ResourceVersion, text, network}, nil
}

// write sets the key Store, unless somebody changed the ConfigMap meanwhile.
func (m storeMigration) write(ctx context.Context, conf storeConfig, store string) error {
	text, err := withStore(conf, store)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]string{"resourceVersion": conf.version},
		"data": map[string]string{"net-conf.json": text}})
	if err != nil {
		return fmt.Errorf("encode a patch of the ConfigMap %s: %w", configMap, err)
	}
	_, err = m.cluster.Kubectl(ctx, "patch", "configmaps", configMap, "--namespace="+m.cluster.Namespace,
		"--type=merge", "--patch="+string(patch))
	return err
}

var (
	storeKey = regexp.MustCompile(`(?i)("store"\s*:\s*)("[^"]*"|null)`)
	opening  = regexp.MustCompile(`^(\s*\{)(\s*)`)
)

// withStore returns the text of a network config with another value of Store, and all else as it is written.
func withStore(conf storeConfig, store string) (string, error) {
	value, text := `"`+store+`"`, ""
	if storeKey.MatchString(conf.text) {
		text = storeKey.ReplaceAllString(conf.text, "${1}"+value)
	} else {
		text = opening.ReplaceAllString(conf.text, `${1}${2}"Store": `+value+`,${2}`)
	}
	got, err := subnet.ParseConfig([]byte(text))
	want := conf.network
	want.Store, want.Raw, got.Raw = store, nil, nil
	if err != nil || !reflect.DeepEqual(got, want) || bytes.Count([]byte(text), []byte(value)) == 0 {
		return "", fmt.Errorf(`net-conf.json of the ConfigMap %s: it cannot be changed without changing more: `+
			`write "Store": %s there yourself, and run this again`, configMap, value)
	}
	return text, nil
}
