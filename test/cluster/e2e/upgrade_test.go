//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/test/cluster"
)

// previousImage is the image of the release before, as the nodes know it.
const previousImage = "ghcr.io/twill-net/twill:previous"

// TestUpgrade goes back to the release before by its manifest, and forward again node by node, with two versions in one
// cluster meanwhile. Pods keep their network all the time. The release is the last tag, or the commit that the environment
// variable TWILL_PREVIOUS names.
func TestUpgrade(t *testing.T) {
	newer, err := spec.Manifest()
	must(t, err)
	older := previous(t, newer)
	pods := probes(t)
	matrix(t)
	stop := watchLoss(t, pods)

	must(t, spec.Apply(t.Context(), older))
	must(t, spec.WaitReady(t.Context()))
	wantVersions(t, spec.Nodes)
	matrix(t)

	// The agents of the other nodes stay until somebody deletes them.
	onDelete := strings.Replace(newer, "    type: RollingUpdate\n    rollingUpdate:\n      maxUnavailable: 10%\n", "    type: OnDelete\n", 1)
	if onDelete == newer {
		t.Fatal("the manifest has another updateStrategy: change this test")
	}
	t.Cleanup(func() {
		if err := spec.Apply(context.Background(), newer); err != nil {
			t.Error(err)
		}
	})
	must(t, spec.Apply(t.Context(), onDelete))
	for n := 1; n <= spec.Nodes; n++ {
		kubectl(t, "--namespace=kube-twill", "delete", "pod", "--selector=app.kubernetes.io/name=twill",
			"--field-selector=spec.nodeName="+spec.NodeName(n))
		wantVersions(t, spec.Nodes-n)
		matrix(t)
	}
	must(t, spec.Apply(t.Context(), newer))
	must(t, spec.WaitReady(t.Context()))
	stop()
}

// wantVersions waits until all agents are ready, of which some are of the release before.
func wantVersions(t *testing.T, before int) {
	t.Helper()
	want := fmt.Sprintf("%d of the release before, %d of this one", before, spec.Nodes-before)
	await(t, want, time.Minute, func() (bool, error) {
		out, err := spec.Kubectl(t.Context(), "--namespace=kube-twill", "get", "pods", "--selector=app.kubernetes.io/name=twill",
			`--output=jsonpath={range .items[*]}{.spec.containers[0].image}{" "}{.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}`)
		older, newer := strings.Count(out, previousImage+" True"), strings.Count(out, cluster.TwillImage+" True")
		return older == before && newer == spec.Nodes-before, fmt.Errorf("%d of the release before, %d of this one: %v", older, newer, err)
	})
}

// previous builds the release before from its source, gives its image to the nodes, and returns its manifest with this
// cluster's network config.
func previous(t *testing.T, newer string) string {
	t.Helper()
	root := "../../.."
	ref := os.Getenv("TWILL_PREVIOUS")
	if ref == "" {
		out, err := exec.CommandContext(t.Context(), "git", "-C", root, "describe", "--tags", "--abbrev=0").Output()
		if err != nil {
			t.Skip("there is no release yet: TWILL_PREVIOUS can name a commit to take for one")
		}
		ref = strings.TrimSpace(string(out))
	}
	source := t.TempDir()
	shell := exec.CommandContext(t.Context(), "sh", "-ec", `
		git -C "$1" archive "$2" | tar -x -C "$3"
		SOURCE_DATE_EPOCH=$(git -C "$1" log -1 --format=%ct "$2"); export SOURCE_DATE_EPOCH
		PATH=$PATH:/usr/sbin:/sbin "$3/test/cluster/image" "${4%:*}" "${4##*:}" "$3.tar"`,
		"sh", root, ref, source, previousImage)
	archive := source + ".tar"
	t.Cleanup(func() { _ = os.Remove(archive) })
	if out, err := shell.CombinedOutput(); err != nil {
		t.Fatalf("build the image of %s: %v\n%s", ref, err, out)
	}
	for n := 1; n <= spec.Nodes; n++ {
		must(t, spec.Import(t.Context(), spec.NodeName(n), archive))
	}
	data, err := os.ReadFile(filepath.Join(source, "Documentation", "twill.yml"))
	must(t, err)
	var documents []string
	for _, manifest := range []string{string(data), newer} {
		for document := range strings.SplitSeq(manifest, "\n---\n") {
			if strings.Contains(document, "\nkind: ConfigMap\n") == (manifest == newer) {
				documents = append(documents, document)
			}
		}
	}
	return strings.ReplaceAll(strings.Join(documents, "\n---\n"), cluster.TwillImage, previousImage)
}

// TestRolloutUndo holds what Documentation/upgrade.md says of it: the pods are those of before, and the ConfigMap is not.
func TestRolloutUndo(t *testing.T) {
	manifest, err := spec.Manifest()
	must(t, err)
	t.Cleanup(func() {
		if err := spec.Apply(context.Background(), manifest); err != nil {
			t.Error(err)
		}
	})
	other := strings.Replace(manifest, `{"Type":"vxlan"}`, `{"Type":"vxlan","DirectRouting":true}`, 1)
	other = strings.Replace(other, "        - --ip-masq\n", "        - --ip-masq\n        - -v=1\n", 1)
	must(t, spec.Apply(t.Context(), other))
	must(t, spec.WaitReady(t.Context()))
	undo := ""
	for _, b := range blocks(t, "upgrade.md") {
		if strings.Contains(b, "rollout undo") {
			undo = b
		}
	}
	execute(t, undo)
	must(t, spec.WaitReady(t.Context()))
	args := kubectl(t, "--namespace=kube-twill", "get", "daemonset", "twill", "--output=jsonpath={.spec.template.spec.containers[0].args}")
	conf := kubectl(t, "--namespace=kube-twill", "get", "configmap", "twill", "--output=jsonpath={.data}")
	if !strings.Contains(args, "--ip-masq") || strings.Contains(args, "-v=1") || !strings.Contains(conf, "DirectRouting") {
		t.Errorf("after rollout undo the agents have the flags %s and the config %s", args, conf)
	}
	matrix(t)
}
