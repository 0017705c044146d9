package controlplane

import (
	"bytes"
	"crypto/rand"
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// User is somebody the API server knows by a bearer token. What the user may do is RBAC's business.
type User struct {
	Name   string   // a service account is system:serviceaccount:NAMESPACE:NAME
	Groups []string // system:authenticated comes by itself
	Token  string   // empty: the one of an earlier start in the same directory, else a new one
}

// Admin is the user that every API server of this package has, and that may do everything.
const Admin = "admin"

// loadTokens completes the users with the admin, with those of an earlier start and with tokens, and writes them
// to the file. Its format is https://kubernetes.io/docs/reference/access-authn-authz/authentication/#static-token-file
func loadTokens(path string, users []User) (map[string]User, error) {
	known, err := readTokens(path)
	if err != nil {
		return nil, err
	}
	for _, u := range append([]User{{Name: Admin, Groups: []string{"system:masters"}}}, users...) {
		if u.Token == "" {
			u.Token = known[u.Name].Token
		}
		if u.Token == "" {
			u.Token = rand.Text()
		}
		known[u.Name] = u
	}
	return known, writeTokens(path, known)
}

func readTokens(path string) (map[string]User, error) {
	known := map[string]User{}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return known, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read tokens: %w", err)
	}
	r := csv.NewReader(bytes.NewReader(data))
	r.FieldsPerRecord = 4
	rows, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("read tokens in %s: %w", path, err)
	}
	for _, row := range rows {
		u := User{Token: row[0], Name: row[1]}
		if row[3] != "" {
			u.Groups = strings.Split(row[3], ",")
		}
		known[u.Name] = u
	}
	return known, nil
}

func writeTokens(path string, users map[string]User) error {
	var buf bytes.Buffer
	w := csv.NewWriter(&buf)
	for _, u := range users {
		w.Write([]string{u.Token, u.Name, u.Name, strings.Join(u.Groups, ",")})
	}
	w.Flush()
	if err := errors.Join(w.Error(), os.WriteFile(path, buf.Bytes(), 0o600)); err != nil {
		return fmt.Errorf("write tokens: %w", err)
	}
	return nil
}
