package kube

import "errors"

// StatusCode returns the HTTP status of an answer by which the API server refused a request, 0 if err is no such answer.
func StatusCode(err error) int {
	var a *answerError
	if !errors.As(err, &a) {
		return 0
	}
	return a.code
}
