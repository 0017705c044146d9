package fake

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

var awsAuthorization = regexp.MustCompile(
	`^AWS4-HMAC-SHA256 Credential=([A-Z0-9]+)/(\d{8})/([a-z0-9-]+)/ec2/aws4_request, ?SignedHeaders=([a-z0-9;-]+), ?Signature=([0-9a-f]{64})$`)

// signed checks a request's signature of version 4.
func (a *aws) signed(r *http.Request, body []byte) error {
	failure := func(why string) error {
		return &awsProblem{http.StatusUnauthorized, "AuthFailure",
			"AWS was not able to validate the provided access credentials: " + why}
	}
	parts := awsAuthorization.FindStringSubmatch(r.Header.Get("Authorization"))
	if parts == nil {
		return failure("there is no signature of version 4 for ec2")
	}
	id, day, region, headers, signature := parts[1], parts[2], parts[3], parts[4], parts[5]
	date := r.Header.Get("X-Amz-Date")
	at, err := time.Parse("20060102T150405Z", date)
	if err != nil || !strings.HasPrefix(date, day) || time.Since(at).Abs() > 15*time.Minute {
		return awsRefuse("RequestExpired", "Request has expired.")
	}
	if region != a.Region {
		return failure("the credential is for the region " + region)
	}
	secret, known := a.Keys[id]
	if id == awsRoleKeyID {
		secret, known = a.roleSecret(), r.Header.Get("X-Amz-Security-Token") == a.roleToken()
	}
	if !known {
		return failure("nobody has this key or token")
	}
	if !strings.Contains(";"+headers+";", ";host;") || !strings.Contains(";"+headers+";", ";x-amz-date;") {
		return failure("host and date are not signed")
	}
	canonical := r.Method + "\n" + r.URL.EscapedPath() + "\n" + r.URL.RawQuery + "\n"
	for _, name := range strings.Split(headers, ";") {
		value := r.Header.Get(name)
		switch name {
		case "host":
			value = r.Host
		case "content-length":
			value = strconv.FormatInt(r.ContentLength, 10)
		}
		canonical += name + ":" + strings.Join(strings.Fields(value), " ") + "\n"
	}
	canonical += "\n" + headers + "\n" + fmt.Sprintf("%x", sha256.Sum256(body))
	scope := day + "/" + region + "/ec2/aws4_request"
	key := []byte("AWS4" + secret)
	for _, part := range []string{day, region, "ec2", "aws4_request"} {
		key = awsSign(key, part)
	}
	want := fmt.Sprintf("%x", awsSign(key, "AWS4-HMAC-SHA256\n"+date+"\n"+scope+"\n"+awsDigest(canonical)))
	if !hmac.Equal([]byte(want), []byte(signature)) {
		return failure("the signature is wrong")
	}
	return nil
}

func awsSign(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	_, _ = h.Write([]byte(text))
	return h.Sum(nil)
}
