package kube

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// StatusCode returns the HTTP status of an answer by which the API server refused a request, 0 if err is no such answer.
func StatusCode(err error) int {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return 0
	}
	return int(status.Status().Code)
}
