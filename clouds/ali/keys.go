package ali

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/twill-net/twill/cloud"
)

// accessKey signs requests.
type accessKey struct {
	id     string
	secret cloud.Secret
	token  cloud.Secret // of a role
}

// roleKey is an access key that a role lends for a while.
type roleKey struct {
	accessKey
	until time.Time
}

// renewBefore is how long before its end a role's access key is not used any more.
const renewBefore = 5 * time.Minute

// configuredKey returns the access key of net-conf.json, else of flannel's variables, else of Alibaba's own. It is
// empty where there is none.
func configuredKey(o cloud.Options) (accessKey, error) {
	type source struct{ idName, id, secretName, secret, token string }
	for _, s := range []source{
		{"AccessKeyID", o.KeyID, "AccessKeySecret", o.KeySecret.Reveal(), ""},
		{"ACCESS_KEY_ID", os.Getenv("ACCESS_KEY_ID"), "ACCESS_KEY_SECRET", os.Getenv("ACCESS_KEY_SECRET"), ""},
		{"ALIBABA_CLOUD_ACCESS_KEY_ID", os.Getenv("ALIBABA_CLOUD_ACCESS_KEY_ID"), "ALIBABA_CLOUD_ACCESS_KEY_SECRET",
			os.Getenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET"), os.Getenv("ALIBABA_CLOUD_SECURITY_TOKEN")},
	} {
		switch {
		case s.id == "" && s.secret == "":
			continue
		case s.id == "":
			return accessKey{}, fmt.Errorf("%s is set and %s is not: an access key needs both", s.secretName, s.idName)
		case s.secret == "":
			return accessKey{}, fmt.Errorf("%s is set and %s is not: an access key needs both", s.idName, s.secretName)
		}
		return accessKey{s.id, cloud.NewSecret(s.secret), cloud.NewSecret(s.token)}, nil
	}
	return accessKey{}, nil
}

// accessKey returns what requests are signed with.
func (a *api) accessKey(ctx context.Context) (accessKey, error) {
	if a.key.id != "" {
		return a.key, nil
	}
	a.mu.Lock()
	role := a.role
	a.mu.Unlock()
	if time.Until(role.until) > renewBefore {
		return role.accessKey, nil
	}
	role, err := a.meta.roleKey(ctx)
	if err != nil {
		return accessKey{}, err
	}
	a.mu.Lock()
	a.role = role
	a.mu.Unlock()
	return role.accessKey, nil
}

// forgetRole has the next request ask for another access key.
func (a *api) forgetRole() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.role = roleKey{}
}

// errNoKey says what would be right.
var errNoKey = fmt.Errorf("there is no access key: neither net-conf.json nor the environment (ACCESS_KEY_ID and "+
	"ACCESS_KEY_SECRET) has one, and the instance has no RAM role (aliyun ecs AttachInstanceRamRole gives it one): %w",
	cloud.ErrDenied)

// roleKey asks the metadata service for an access key of the instance's RAM role.
func (m metadata) roleKey(ctx context.Context) (roleKey, error) {
	const folder = "ram/security-credentials/"
	session, err := m.open(ctx)
	if err != nil {
		return roleKey{}, err
	}
	name, err := session.get(ctx, folder)
	if errors.Is(err, errNoSuchItem) {
		return roleKey{}, errNoKey
	}
	if err != nil {
		return roleKey{}, err
	}
	text, err := session.get(ctx, folder+url.PathEscape(name))
	if err != nil {
		return roleKey{}, err
	}
	var lent struct {
		Code, AccessKeyId, AccessKeySecret, SecurityToken string
		Expiration                                        time.Time
	}
	if json.Unmarshal([]byte(text), &lent) != nil {
		return roleKey{}, fmt.Errorf("the metadata service's access key of the RAM role %.64q is not as documented", name)
	}
	if lent.Code != "Success" || lent.AccessKeyId == "" || lent.AccessKeySecret == "" {
		return roleKey{}, fmt.Errorf("the metadata service has no access key of the RAM role %.64q: its code is %.40q",
			name, lent.Code)
	}
	key := accessKey{lent.AccessKeyId, cloud.NewSecret(lent.AccessKeySecret), cloud.NewSecret(lent.SecurityToken)}
	return roleKey{key, lent.Expiration}, nil
}
