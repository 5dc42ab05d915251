#include "net/s3.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>

#include "base/environment.h"
#include "base/file.h"
#include "base/sha256.h"

namespace specdec::net {

namespace {

constexpr long kConflict = 409;  // another request for the same object is in progress; AWS says to try again

std::string amz_date() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  char text[24];
  std::strftime(text, sizeof text, "%Y%m%dT%H%M%SZ", ::gmtime_r(&now, &utc));
  return text;
}

// Returns the text of the first element <name>…</name>, or "".
std::string element(const std::string& xml, const std::string& name) {
  const size_t begin = xml.find("<" + name + ">"),
               end = begin == std::string::npos ? begin : xml.find("</" + name + ">", begin);
  return end == std::string::npos ? "" : xml.substr(begin + name.size() + 2, end - begin - name.size() - 2);
}

}  // namespace

S3Options s3_options_from_environment() {
  S3Options options;
  const std::string endpoint = environment({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
  if (!endpoint.empty()) options.endpoint = base_url(endpoint, "AWS_ENDPOINT_URL_S3", "AWS_SECRET_ACCESS_KEY");
  options.region = environment({"AWS_REGION", "AWS_DEFAULT_REGION"}, options.region);
  options.access_key = environment({"AWS_ACCESS_KEY_ID"});
  options.secret_key = environment({"AWS_SECRET_ACCESS_KEY"});
  options.session_token = environment({"AWS_SESSION_TOKEN"});
  if (options.access_key.empty() || options.secret_key.empty())
    throw Error(ErrorKind::kConfig, "s3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY must be set");
  return options;
}

std::string sign_s3(const S3Options& options, const std::string& method, const std::string& path,
                    const std::string& query, const std::map<std::string, std::string>& headers) {
  std::string canonical = method + "\n" + path + "\n" + query + "\n", names;
  for (const auto& [name, value] : headers) {
    canonical += name + ":" + value + "\n";
    names += (names.empty() ? "" : ";") + name;
  }
  canonical += "\n" + names + "\n" + headers.at("x-amz-content-sha256");
  const std::string date = headers.at("x-amz-date"), day = date.substr(0, 8),
                    scope = day + "/" + options.region + "/s3/aws4_request";
  const std::string key = hmac_sha256(
      hmac_sha256(hmac_sha256(hmac_sha256("AWS4" + options.secret_key.reveal(), day), options.region), "s3"),
      "aws4_request");
  const std::string signature =
      to_hex(hmac_sha256(key, "AWS4-HMAC-SHA256\n" + date + "\n" + scope + "\n" + sha256_hex(canonical)));
  return "AWS4-HMAC-SHA256 Credential=" + options.access_key + "/" + scope + ",SignedHeaders=" + names +
         ",Signature=" + signature;
}

S3Location parse_s3(const std::string& url) {
  const std::string rest = url.rfind("s3://", 0) == 0 ? url.substr(5) : "";
  S3Location location{rest.substr(0, rest.find('/')),
                      rest.find('/') == std::string::npos ? "" : rest.substr(rest.find('/') + 1)};
  while (location.prefix.ends_with('/')) location.prefix.pop_back();
  const char* kAllowed = "abcdefghijklmnopqrstuvwxyz0123456789.-";
  if (location.bucket.size() < 3 || location.bucket.size() > 63 ||
      location.bucket.find_first_not_of(kAllowed) != std::string::npos || location.prefix.starts_with('/'))
    throw Error(ErrorKind::kUsage, "expected s3://bucket[/prefix], found '" + url.substr(0, 200) + "'");
  return location;
}

S3Client::S3Client(S3Location location, S3Options options)
    : location_(std::move(location)), options_(std::move(options)) {
  const bool own = !options_.endpoint.empty();
  const std::string endpoint =
      own ? options_.endpoint : "https://" + location_.bucket + ".s3." + options_.region + ".amazonaws.com";
  if (!keeps_secrets(endpoint))
    throw Error(ErrorKind::kUsage,
                "s3: " + endpoint + ": expected https, or this machine: requests carry what a listener could replay");
  const size_t path = endpoint.find('/', endpoint.find("://") + 3);
  origin_ = endpoint.substr(0, path);
  base_path_ = (path == std::string::npos ? "" : endpoint.substr(path)) + (own ? "/" + location_.bucket : "");
  if (!location_.prefix.empty()) base_path_ += "/" + percent_encoded(location_.prefix, true);
}

std::string S3Client::name(const std::string& key) const {
  return "s3://" + location_.bucket + "/" + (location_.prefix.empty() ? "" : location_.prefix + "/") + key;
}

HttpReply S3Client::ask(const Request& asked) {
  const std::string path = base_path_ + "/" + percent_encoded(asked.key, true),
                    payload = sha256_hex(asked.body ? *asked.body : std::string());
  const std::string empty;
  const auto make = [&] {
    std::map<std::string, std::string> headers = asked.headers;
    headers["host"] = origin_.substr(origin_.find("://") + 3);
    headers["x-amz-date"] = amz_date();
    headers["x-amz-content-sha256"] = payload;
    if (!options_.session_token.empty()) headers["x-amz-security-token"] = options_.session_token.reveal();
    HttpRequest request;
    request.url = origin_ + path + (asked.query.empty() ? "" : "?" + asked.query);
    request.head = asked.method == "HEAD";
    if (asked.method != "GET" && asked.method != "HEAD") {
      request.method = asked.method;
      request.post = asked.body ? asked.body : &empty;
    }
    request.headers = {"Authorization: " + sign_s3(options_, asked.method, path, asked.query, headers)};
    for (const auto& [name, value] : headers)
      if (name != "host") request.headers.push_back(name + ": " + value);
    request.timeout_s = 0;
    request.stall_timeout_s = 30;
    request.max_body_bytes = asked.max_bytes;
    request.on_body = asked.on_body;
    return request;
  };
  Backoff backoff = options_.backoff;
  backoff.also_retried = kConflict;
  if (asked.once) backoff.max_attempts = 1;
  return http_.send(make, backoff);
}

void S3Client::refuse(const std::string& key, const HttpReply& reply) const {
  const std::string code = element(reply.body, "Code"),
                    what = reply.problem.empty()
                               ? "HTTP " + std::to_string(reply.status) + (code.empty() ? "" : " " + code.substr(0, 80))
                               : reply.problem;
  if (reply.status == 401 || reply.status == 403)
    throw Error(ErrorKind::kConfig, name(key) + ": " + what + ": the keys of AWS_ACCESS_KEY_ID are refused");
  if (reply.status == 404) throw Error(ErrorKind::kData, name(key) + ": " + what);
  if (!reply.redirect.empty())
    throw Error(ErrorKind::kConfig, name(key) + ": " + what + ": the bucket is at " + origin_of(reply.redirect) +
                                        ": set AWS_REGION or AWS_ENDPOINT_URL_S3 to that place");
  const bool stays = reply.problem.empty() && reply.status != kConflict && !may_pass(reply.status);
  throw Error(stays ? ErrorKind::kConfig : ErrorKind::kNetwork, name(key) + ": " + what);
}

std::optional<uint64_t> S3Client::size(const std::string& key) {
  const HttpReply reply = ask({.method = "HEAD", .key = key});
  if (reply.status == 404) return std::nullopt;
  if (reply.status != 200) refuse(key, reply);
  return std::strtoull(reply.header("content-length").c_str(), nullptr, 10);
}

std::string S3Client::get(const std::string& key, size_t max_bytes) {
  const HttpReply reply = ask({.method = "GET", .key = key, .max_bytes = max_bytes});
  if (reply.status == 404 && element(reply.body, "Code") != "NoSuchBucket") return "";
  if (reply.status != 200 || !reply.problem.empty()) refuse(key, reply);
  return reply.body;
}

void S3Client::read(const std::string& key, uint64_t begin, const std::function<void(std::string_view)>& take) {
  const auto on_body = [&](const HttpReply& head, std::string_view bytes) {
    if (begin > 0 && head.status != 206)
      throw Error(ErrorKind::kNetwork, name(key) + ": asked for a part, the whole came");
    take(bytes);
  };
  std::map<std::string, std::string> range;
  if (begin > 0) range["range"] = "bytes=" + std::to_string(begin) + "-";
  const HttpReply reply = ask({.method = "GET", .key = key, .headers = range, .on_body = on_body, .once = true});
  if ((reply.status != 200 && reply.status != 206) || !reply.problem.empty()) refuse(key, reply);
}

bool S3Client::put(const std::string& key, const std::string& body, bool if_absent) {
  std::map<std::string, std::string> more;
  if (if_absent) more["if-none-match"] = "*";
  const HttpReply reply = ask({.method = "PUT", .key = key, .body = &body, .headers = more});
  if (if_absent && reply.problem.empty() && reply.status == 412) {
    // The store refused to write because the object exists. Checks that it does exist, because a channel must never
    // name a package that is missing.
    if (size(key)) return false;
    throw Error(ErrorKind::kNetwork, name(key) +
                                         ": the store refuses to write it because it exists (HTTP 412), and "
                                         "says that it does not exist: try again");
  }
  if (if_absent && reply.problem.empty() && reply.status == 501) {  // a store without conditional writes
    if (size(key)) return false;
    return put(key, body, false);
  }
  if (reply.status != 200 || !reply.problem.empty()) refuse(key, reply);
  return true;
}

void S3Client::put_file(const std::string& key, const fs::path& file, const std::function<void(uint64_t)>& progress) {
  const InputFile in(file, ErrorKind::kData);
  const auto part = [&](uint64_t at) {
    std::string bytes(std::min(options_.part_bytes, in.size() - at), '\0');
    in.read(at, std::as_writable_bytes(std::span(bytes)));
    return bytes;
  };
  if (in.size() <= options_.part_bytes) {
    put(key, part(0), false);
    return progress(in.size());
  }
  const HttpReply started = ask({.method = "POST", .key = key, .query = "uploads="});
  const std::string upload = element(started.body, "UploadId");
  if (started.status != 200 || upload.empty()) refuse(key, started);
  const std::string of = "uploadId=" + percent_encoded(upload, false);
  try {
    std::string list = "<CompleteMultipartUpload>";
    int number = 1;
    for (uint64_t at = 0; at < in.size(); at += options_.part_bytes, ++number) {
      const std::string bytes = part(at);
      const HttpReply reply = ask(
          {.method = "PUT", .key = key, .query = "partNumber=" + std::to_string(number) + "&" + of, .body = &bytes});
      if (reply.status != 200 || reply.header("etag").empty()) refuse(key, reply);
      list += "<Part><PartNumber>" + std::to_string(number) + "</PartNumber><ETag>" + reply.header("etag") +
              "</ETag></Part>";
      progress(bytes.size());
    }
    list += "</CompleteMultipartUpload>";
    const HttpReply done = ask({.method = "POST", .key = key, .query = of, .body = &list});
    // Even a reply with status 200 may contain an error.
    if (done.status != 200 || !element(done.body, "Code").empty()) refuse(key, done);
  } catch (const Error&) {
    // Aborts the upload, because stored parts cost money.
    ask({.method = "DELETE", .key = key, .query = of, .once = true});
    throw;
  }
}

}  // namespace specdec::net
