// A client for objects of an S3 bucket. It has the few requests that stores of packages need, signed with AWS Signature
// Version 4.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "net/http_client.h"

namespace specdec::net {

struct S3Options {
  // "" = Amazon's endpoint of the region. With any other endpoint, objects are addressed by path: ENDPOINT/BUCKET/KEY.
  std::string endpoint;
  std::string region = "us-east-1";
  std::string access_key;
  Secret secret_key, session_token;
  uint64_t part_bytes = 64u << 20;  // larger files are uploaded in parts of this size
  Backoff backoff = [] {
    Backoff b;
    b.max_attempts = 5;
    return b;
  }();
};
// Reads AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, AWS_REGION or AWS_DEFAULT_REGION, AWS_ACCESS_KEY_ID,
// AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN. Throws Error(kConfig) without the keys, Error(kUsage) for an endpoint
// that is not a URL.
S3Options s3_options_from_environment();

// Returns the value of the Authorization header. `headers` are the headers to sign, with names in lower case; they must
// include `host`, `x-amz-date` (20130524T000000Z) and `x-amz-content-sha256`. `path` and `query` must be
// percent-encoded, and `query` sorted.
std::string sign_s3(const S3Options& options, const std::string& method, const std::string& path,
                    const std::string& query, const std::map<std::string, std::string>& headers);

// A parsed "s3://bucket/some/prefix". parse_s3() throws Error(kUsage) for anything else.
struct S3Location {
  std::string bucket, prefix;  // the prefix has no slashes at its ends; "" = the bucket itself
};
S3Location parse_s3(const std::string& url);

// Reads and writes objects. The names of objects (`key`) are relative to the prefix. Conflicts (409) are retried like
// other temporary answers. Every unexpected status becomes an Error: kData for a missing bucket or object, kNetwork if
// the same request may succeed later, else kConfig (refused access keys, another region).
class S3Client {
 public:
  S3Client(S3Location location, S3Options options);
  std::string name(const std::string& key) const;  // returns "s3://bucket/prefix/key"
  std::optional<uint64_t> size(const std::string& key);
  std::string get(const std::string& key, size_t max_bytes);  // returns "" if the object does not exist
  void read(const std::string& key, uint64_t begin, const std::function<void(std::string_view)>& take);
  // Writes the object. With `if_absent`, returns false and writes nothing if the object exists already; a second
  // request confirms that it exists. A store without conditional writes answers 501. put() then asks whether the object
  // exists and writes it if not, so two concurrent callers may both write.
  bool put(const std::string& key, const std::string& body, bool if_absent);
  void put_file(const std::string& key, const std::filesystem::path& file,
                const std::function<void(uint64_t bytes)>& progress);

 private:
  struct Request {
    std::string method, key;
    std::string query = {};                           // percent-encoded and sorted
    const std::string* body = nullptr;                // null = an empty body
    std::map<std::string, std::string> headers = {};  // additional headers to sign
    std::function<void(const HttpReply&, std::string_view)> on_body = {};
    size_t max_bytes = 1u << 20;  // limit for HttpReply::body
    bool once = false;            // true: no retries
  };
  HttpReply ask(const Request& asked);
  [[noreturn]] void refuse(const std::string& key, const HttpReply& reply) const;
  S3Location location_;
  S3Options options_;
  std::string origin_, base_path_;
  HttpClient http_;
};

}  // namespace specdec::net
