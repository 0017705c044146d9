// Package aws has others judge how Twill speaks with Amazon: moto plays EC2 for the client, the AWS CLI asks the front
// of package fake, and the model that Amazon's SDKs are made from judges each request and each answer.
package aws
