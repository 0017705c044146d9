package kubeclient

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

type terminalError struct{ error }

func (e terminalError) Unwrap() error { return e.error }

// Terminal makes err an error that waiting does not mend.
func Terminal(err error) error { return terminalError{err} }

// IsTerminal reports whether waiting does not mend err.
func IsTerminal(err error) bool { return errors.As(err, new(terminalError)) }

// Explain says in a sentence what the API server did not do. Errors that waiting does not mend become terminal.
func Explain(verb, resource string, err error) error {
	switch {
	case err == nil || IsTerminal(err):
		return err
	case apierrors.IsForbidden(err):
		return Terminal(fmt.Errorf("the API server forbids %s on %s: %w", verb, resource, err))
	case apierrors.IsUnauthorized(err):
		return Terminal(fmt.Errorf("the API server does not know the credentials for %s on %s: %w", verb, resource, err))
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsNotFound(err):
		return Terminal(fmt.Errorf("%s %s: %w", verb, resource, err))
	}
	return fmt.Errorf("%s %s: %w", verb, resource, err)
}

// StatusCode returns the HTTP status of an answer by which the API server refused a request, 0 if err is no such
// answer.
func StatusCode(err error) int {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return 0
	}
	return int(status.Status().Code)
}
