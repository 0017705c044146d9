package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/twill-net/twill/test/cluster"
)

// programs is where genuine programs are: bin/kube and what lies beside it.
type programs struct{ bin string }

func (p programs) kube(name string) string { return filepath.Join(p.bin, "kube", name) }

// kubeModule is the folder of the module that pins Kubernetes.
func (p programs) kubeModule() string { return filepath.Join(filepath.Dir(p.bin), "tools", "kube") }

// pack puts the images that the tests of [sig-network] use into one archive.
func (p kubernetesSuite) pack(ctx context.Context, archive string) error {
	list, err := exec.CommandContext(ctx, p.kube("e2e.test"), "--list-images").Output()
	if err != nil {
		return fmt.Errorf("list the images of e2e.test: %w", err)
	}
	var images []cluster.Image
	for lines := bufio.NewScanner(bytes.NewReader(list)); lines.Scan(); {
		name := strings.TrimSpace(lines.Text())
		image, wanted, err := p.image(ctx, name)
		if err != nil {
			return fmt.Errorf("pack %s: %w", name, err)
		}
		if wanted {
			images = append(images, image)
		}
	}
	if len(images) == 0 {
		return errors.New("e2e.test --list-images names none of the images that are known here")
	}
	return cluster.WriteImages(archive, images...)
}

// image makes one of the images, if it is one that is wanted. What Kubernetes builds from its own source is that;
// below it lie Debian's files instead of Alpine's. nginx only has to run, in the tests of endpoints.
func (p kubernetesSuite) image(ctx context.Context, name string) (image cluster.Image, wanted bool, err error) {
	i := cluster.Image{Name: name, Base: filepath.Join(p.bin, "conformance", "rootfs.tar")}
	repository, _, _ := strings.Cut(name, ":")
	switch path.Base(repository) {
	case "agnhost":
		i.Entry, i.Args = []string{"/agnhost"}, []string{"pause"}
		err = p.addAgnhost(ctx, &i)
	case "nginx":
		i.Entry = []string{"/agnhost", "test-webserver"}
		err = p.addAgnhost(ctx, &i)
	case "pause":
		i.Entry = []string{"/agnhost", "pause"}
		err = p.addAgnhost(ctx, &i)
	case "regression-issue-74839":
		i.Entry = []string{"/regression-issue-74839"}
		err = i.Add(ctx, i.Entry[0], p.kube("regression-issue-74839"))
	case "busybox", "glibc-dns-testing", "distroless-iptables":
		i.Args = []string{"sh"}
	default:
		return i, false, nil
	}
	return i, true, err
}

// addAgnhost adds what agnhost's Dockerfile adds, with a newer CoreDNS, and SCTP where the kernel has none.
func (p kubernetesSuite) addAgnhost(ctx context.Context, i *cluster.Image) error {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	cmd.Dir, cmd.Env = p.kubeModule(), append(os.Environ(), "GOWORK=off")
	source, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("find the source of Kubernetes: %w", err)
	}
	porter := filepath.Join(strings.TrimSpace(string(source)), "test", "images", "agnhost", "porter")
	return errors.Join(
		i.Add(ctx, "/agnhost", filepath.Join(p.bin, "conformance", "agnhost")), // the one with SCTP
		i.Add(ctx, "/agnhost-genuine", p.kube("agnhost")),
		i.Add(ctx, "/agnhost-2", p.kube("agnhost")),
		i.Add(ctx, "/coredns", filepath.Join(p.bin, "coredns")),
		i.AddFile("/localhost.crt", filepath.Join(porter, "localhost.crt"), 0o644),
		i.AddFile("/localhost.key", filepath.Join(porter, "localhost.key"), 0o644),
	)
}
