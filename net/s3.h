// Objects of an S3 bucket: the few requests that stores of packages need, signed with AWS Signature Version 4.
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
  std::string endpoint;  // "" = Amazon's of the region; others are asked by path: ENDPOINT/BUCKET/KEY
  std::string region = "us-east-1";
  std::string access_key;
  Secret secret_key, session_token;
  uint64_t part_bytes = 64u << 20;  // larger files go in parts of so many bytes
  Backoff backoff = [] {
    Backoff b;
    b.max_attempts = 5;
    return b;
  }();
};
// AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, AWS_REGION or AWS_DEFAULT_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
// AWS_SESSION_TOKEN. Throws Error(kConfig) without the keys, Error(kUsage) for an endpoint that is no URL.
S3Options s3_options_from_environment();

// The value of Authorization. `headers`: what is signed, names in lower case, `host`, `x-amz-date` (20130524T000000Z)
// and `x-amz-content-sha256` among them; path and query percent-encoded, the query sorted.
std::string sign_s3(const S3Options& options, const std::string& method, const std::string& path,
                    const std::string& query, const std::map<std::string, std::string>& headers);

// "s3://bucket/some/prefix". Throws Error(kUsage) for anything else.
struct S3Location {
  std::string bucket, prefix;  // prefix without slashes at its ends, "" = the bucket itself
};
S3Location parse_s3(const std::string& url);

// Keys are relative to the prefix. Every status that is no answer is an Error: kConfig for keys that are refused, kData
// for a bucket that is not there, kNetwork otherwise.
class S3Client {
 public:
  S3Client(S3Location location, S3Options options);
  std::string name(const std::string& key) const;  // "s3://bucket/prefix/key"
  std::optional<uint64_t> size(const std::string& key);
  std::string get(const std::string& key, size_t max_bytes);  // "" if it is not there
  void read(const std::string& key, uint64_t begin, const std::function<void(std::string_view)>& take);
  // False: `if_absent`, and it is there already; nothing was written.
  bool put(const std::string& key, const std::string& body, bool if_absent);
  void put_file(const std::string& key, const std::filesystem::path& file,
                const std::function<void(uint64_t bytes)>& progress);

 private:
  HttpReply ask(const std::string& method, const std::string& key, const std::string& query, const std::string* body,
                const std::map<std::string, std::string>& more,
                const std::function<void(const HttpReply&, std::string_view)>& on_body = {},
                size_t max_bytes = 1u << 20, bool once = false);
  [[noreturn]] void refuse(const std::string& key, const HttpReply& reply) const;
  S3Location location_;
  S3Options options_;
  std::string origin_, base_path_;
  HttpClient http_;
};

}  // namespace specdec::net
