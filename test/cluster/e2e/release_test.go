//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// releaseVersion is of a release that only this test makes.
const releaseVersion = "v9.8.7"

// TestRelease makes a release of the working tree and installs its own files: the images from their OCI layouts, the manifests
// that pin them. The small image refuses a backend that needs a shell, in a sentence, and the variant -full runs it.
func TestRelease(t *testing.T) {
	dir := releaseFiles(t)
	manifest, err := spec.Manifest()
	must(t, err)
	pods := probes(t)
	stop := watchLoss(t, pods)
	t.Cleanup(func() {
		if err := spec.Apply(context.Background(), manifest); err != nil {
			t.Error(err)
		}
		if err := spec.WaitReady(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for _, variant := range []string{"", "-full"} {
		for n := 1; n <= spec.Nodes; n++ {
			archive := filepath.Join(dir, "twill-image_"+releaseVersion+variant+".tar")
			must(t, spec.ImportPinned(t.Context(), spec.NodeName(n), archive, "ghcr.io/twill-net/twill"))
		}
	}
	must(t, spec.Apply(t.Context(), released(t, dir, "", manifest)))
	must(t, spec.WaitReady(t.Context()))
	if out := kubectl(t, "--namespace=kube-twill", "logs", "daemonset/twill", "--all-pods"); !strings.Contains(out, releaseVersion) {
		t.Errorf("the agents do not say that they are %s:\n%s", releaseVersion, out)
	}
	matrix(t)
	stop()

	const commands = `{"Type":"extension", "Shell":true, ` +
		`"SubnetAddCommand":"ip route replace \"$SUBNET\" via \"$PUBLIC_IP\" && ip route replace \"$IPV6SUBNET\" via \"$PUBLIC_IPV6\"", ` +
		`"SubnetRemoveCommand":"ip route del \"$SUBNET\"; ip route del \"$IPV6SUBNET\"; true"}`
	shell := strings.Replace(manifest, `{"Type":"vxlan"}`, commands, 1)
	must(t, spec.Apply(t.Context(), released(t, dir, "", shell)))
	kubectl(t, "--namespace=kube-twill", "delete", "pods", "--selector=app.kubernetes.io/name=twill")
	await(t, "the small image to refuse", 2*time.Minute, func() (bool, error) {
		out, err := spec.Kubectl(t.Context(), "--namespace=kube-twill", "logs", "daemonset/twill", "--all-pods")
		return strings.Contains(out, "the backend extension's SubnetAddCommand needs sh, and there is none: "+
			"a shell and usual commands are in the variant -full of Twill's image"), fmt.Errorf("%v: %s", err, out)
	})
	must(t, spec.Apply(t.Context(), released(t, dir, "-full", shell)))
	kubectl(t, "--namespace=kube-twill", "delete", "pods", "--selector=app.kubernetes.io/name=twill")
	must(t, spec.WaitReady(t.Context()))
	converge(t)
	for n := 1; n <= spec.Nodes; n++ {
		out, err := spec.Host(spec.NodeName(n)).Exec(t.Context(), "ip", "route", "show", "root", "10.244.0.0/16", "proto", "boot")
		if err != nil || strings.Count(out, " via ") != spec.Nodes-1 {
			t.Errorf("node%d has the routes %q (%v), want one to each peer, of the commands", n, out, err)
		}
		t.Cleanup(func() {
			_, err := spec.Host(spec.NodeName(n)).Exec(context.Background(), "sh", "-c",
				"ip route flush root 10.244.0.0/16 proto boot; ip -6 route flush root fd00:10:244::/48 proto boot")
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// releaseFiles makes the release from a commit of the working tree's files elsewhere.
func releaseFiles(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	c := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", `
		mkdir "$1/source"
		git -C ../../.. ls-files -z --cached --others --exclude-standard | tar -C ../../.. --null --ignore-failed-read -T - -c | tar -C "$1/source" -x
		cd "$1/source"
		git init -q
		git add -A
		git -c user.name=test -c user.email=test@example.com commit -q -m test
		tools/release/build "$2" "$1/files"`, "sh", dir, releaseVersion)
	c.Env = append(os.Environ(), "ARCHITECTURES="+runtime.GOARCH)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("make a release: %v\n%s", err, out)
	}
	return filepath.Join(dir, "files")
}

// released is the release's manifest, with the network config of another.
func released(t *testing.T, dir, variant, config string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "twill_"+releaseVersion+variant+".yml"))
	must(t, err)
	var documents []string
	for _, manifest := range []string{string(data), config} {
		for document := range strings.SplitSeq(manifest, "\n---\n") {
			if strings.Contains(document, "\nkind: ConfigMap\n") == (manifest == config) {
				documents = append(documents, document)
			}
		}
	}
	return strings.Join(documents, "\n---\n")
}
