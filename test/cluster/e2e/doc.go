// Package e2e tests Twill as users get it: the image of the Dockerfile, applied by Documentation/twill.yml to a
// genuine Kubernetes of three nodes. The tests have the build tag e2e.
package e2e
