// Command sandboxes creates pod sandboxes through a runtime's CRI API and removes them again, many at a time, as a
// kubelet does. It prints one line of JSON: how long each took, and which addresses they had. With -status it only asks
// whether the network is ready, and with -clear it only removes all sandboxes.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type options struct {
	socket, cgroup, logs, prefix string
	count, parallel, ports       int
	keep, status, clear          bool
}

// report is the program's output; times are in milliseconds.
type report struct {
	Addresses        []string
	CreateP50        float64
	RemoveP50        float64
	CreateAll, Total float64
	NetworkReady     bool   // with -status
	Message          string // with -status: reason and message
}

func main() {
	var o options
	flag.StringVar(&o.socket, "socket", "/run/containerd/containerd.sock", "the runtime's socket")
	flag.StringVar(&o.cgroup, "cgroup", "/sandboxes", "parent of the sandboxes' cgroups")
	flag.StringVar(&o.logs, "logs", os.TempDir(), "directory for the sandboxes' logs")
	flag.StringVar(&o.prefix, "prefix", "sandbox", "how the pods' names begin")
	flag.IntVar(&o.count, "n", 200, "number of sandboxes")
	flag.IntVar(&o.parallel, "parallel", 20, "how many calls at a time")
	flag.IntVar(&o.ports, "ports", 0, "how many of them get a host port, from 20000 on")
	flag.BoolVar(&o.keep, "keep", false, "remove no sandbox")
	flag.BoolVar(&o.status, "status", false, "create none: ask whether the network is ready, and print why not")
	flag.BoolVar(&o.clear, "clear", false, "create none: remove all that there are")
	flag.Parse()
	r, err := run(context.Background(), o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandboxes:", err)
		os.Exit(1)
	}
	_ = json.NewEncoder(os.Stdout).Encode(r)
}

func run(ctx context.Context, o options) (report, error) {
	conn, err := grpc.NewClient("unix://"+o.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return report{}, err
	}
	defer conn.Close()
	runtime := cri.NewRuntimeServiceClient(conn)
	switch {
	case o.status:
		return network(ctx, runtime)
	case o.clear:
		return report{}, clear(ctx, runtime)
	}
	if err := ready(ctx, runtime); err != nil {
		return report{}, err
	}
	began := time.Now()
	ids, addresses := make([]string, o.count), make([]string, o.count)
	creates, err := each(o, func(i int) (err error) {
		ids[i], addresses[i], err = create(ctx, runtime, o, i)
		return err
	})
	all := time.Since(began)
	removes, err2 := each(o, func(i int) error {
		if o.keep {
			return nil
		}
		return remove(ctx, runtime, ids[i])
	})
	if err := errors.Join(err, err2); err != nil {
		return report{}, err
	}
	return report{Addresses: addresses, CreateP50: median(creates), RemoveP50: median(removes), CreateAll: ms(all),
		Total: ms(time.Since(began))}, nil
}

// network asks the runtime once whether the network is ready.
func network(ctx context.Context, runtime cri.RuntimeServiceClient) (r report, err error) {
	ctx, cancel := context.WithTimeout(ctx, 8*time.Second)
	defer cancel()
	status, err := runtime.Status(ctx, &cri.StatusRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return r, fmt.Errorf("ask the runtime for its status: %w", err)
	}
	for _, c := range status.Status.Conditions {
		if c.Type == "NetworkReady" {
			r.NetworkReady, r.Message = c.Status, c.Reason+": "+c.Message
		}
	}
	return r, nil
}

// clear removes all sandboxes.
func clear(ctx context.Context, runtime cri.RuntimeServiceClient) error {
	all, err := runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	for _, s := range all.Items {
		err = errors.Join(err, remove(ctx, runtime, s.Id))
	}
	return err
}

// ready waits until the runtime has a network config.
func ready(ctx context.Context, runtime cri.RuntimeServiceClient) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		status, err := runtime.Status(ctx, &cri.StatusRequest{}, grpc.WaitForReady(true))
		if err != nil {
			return fmt.Errorf("ask the runtime for its status: %w", err)
		}
		unready := ""
		for _, c := range status.Status.Conditions {
			if !c.Status && (c.Type == "RuntimeReady" || c.Type == "NetworkReady") { // the others are advice
				unready = c.Type + ": " + c.Message
			}
		}
		if unready == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the runtime is not ready after 30 s: %s", unready)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func config(o options, i int) *cri.PodSandboxConfig {
	name := fmt.Sprintf("%s-%d", o.prefix, i)
	c := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Namespace: "sandboxes", Uid: name},
		LogDirectory: o.logs,
		Linux:        &cri.LinuxPodSandboxConfig{CgroupParent: o.cgroup},
	}
	if i < o.ports {
		c.PortMappings = []*cri.PortMapping{{Protocol: cri.Protocol_TCP, ContainerPort: 80, HostPort: int32(20000 + i)}}
	}
	return c
}

func create(ctx context.Context, runtime cri.RuntimeServiceClient, o options, i int) (id, address string, err error) {
	created, err := runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config(o, i)})
	if err != nil {
		return "", "", fmt.Errorf("create sandbox %d: %w", i, err)
	}
	status, err := runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: created.PodSandboxId})
	if err != nil {
		return created.PodSandboxId, "", fmt.Errorf("look at sandbox %d: %w", i, err)
	}
	return created.PodSandboxId, status.Status.Network.Ip, nil
}

// remove stops and removes a sandbox, as a kubelet does with a pod that was deleted.
func remove(ctx context.Context, runtime cri.RuntimeServiceClient, id string) error {
	if id == "" {
		return nil
	}
	if _, err := runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		return fmt.Errorf("stop sandbox %s: %w", id, err)
	}
	if _, err := runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	return nil
}

// each calls f for every sandbox, o.parallel at a time, and returns how long each call took.
func each(o options, f func(i int) error) ([]float64, error) {
	took, errs := make([]float64, o.count), make([]error, o.count)
	slots := make(chan struct{}, o.parallel)
	var wg sync.WaitGroup
	for i := range o.count {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			began := time.Now()
			errs[i] = f(i)
			took[i] = ms(time.Since(began))
		})
	}
	wg.Wait()
	return took, errors.Join(errs...)
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}
