#include "net/hub_upload.h"

#include <algorithm>
#include <charconv>

#include "base/base64.h"

namespace specdec::net {

namespace {

constexpr ErrorKind kAnswer = ErrorKind::kData;
constexpr size_t kMaxAnswer = 16u << 20, kMaxEntries = 100000, kMaxParts = 10000, kMaxAddress = 8192, kMaxEtag = 1024,
                 kPreuploadBatch = 256;
constexpr double kCommitTimeoutS = 600, kUploadStallS = 60;
const char kLfs[] = "application/vnd.git-lfs+json", kJson[] = "application/json", kNdjson[] = "application/x-ndjson";

bool is_ok(const HttpReply& reply) { return reply.problem.empty() && reply.status >= 200 && reply.status < 300; }

std::string require_commit(const std::string& text, const std::string& where) {
  if (!is_commit(text))
    throw Error(kAnswer, where + ": expected a commit of 40 hexadecimal digits, found '" + text.substr(0, 64) + "'");
  return text;
}

// Converts a JSON number, or a string with a number, to an integer. huggingface_hub accepts both.
uint64_t number_of(const Json& value, const std::string& where) {
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size())
    throw Error(kAnswer, where + ": expected a number");
  return number;
}

}  // namespace

HubRepository::HubRepository(const HubName& hub, const HubOptions& options, Access access) : HubSource(hub, options) {
  if (options.offline)
    throw Error(ErrorKind::kUsage,
                name() + ": HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set: a store at a hub is not cached, unset it");
  if (access == Access::kRead) return;
  if (!keeps_secrets(options.endpoint))
    throw Error(ErrorKind::kUsage,
                options.endpoint + ": expected https, or this machine: neither token nor package is sent in the clear");
  if (options.token.empty())
    throw Error(ErrorKind::kUsage, name() + ": no token: set HF_TOKEN to one that may write there");
}

void HubRepository::refuse_package(const std::string& where, const HttpReply& reply) const {
  if (!reply.problem.empty())
    throw Error(ErrorKind::kNetwork,
                where + ": " + reply.problem + " (" + std::to_string(reply.attempts) + " attempts)");
  const std::string status = "HTTP " + std::to_string(reply.status), code = reply.header("x-error-code");
  const bool known = !bearer_.empty();
  if (code == "GatedRepo") refuse(where, reply);
  if (reply.status == 404 || (reply.status == 401 && !known))
    throw Error(kAnswer, where + ": " + options_.endpoint + " has no such repository or revision (" + status +
                             "): check the name, " +
                             (known ? "and that the token of " + options_.token_source + " may see it"
                                    : "or set HF_TOKEN if it is private"));
  if (reply.status == 401 || reply.status == 403)
    throw Error(ErrorKind::kUsage, where + ": " + status + ": the token of " + options_.token_source +
                                       " is refused: it must be valid, and one that may write to " + hub_.organisation +
                                       " to push");
  if (reply.status >= 300 && reply.status < 400)
    throw Error(ErrorKind::kUsage, where + ": " + status + ": moved: name the repository as the hub calls it now");
  if (reply.status == 429 || reply.status >= 500)
    throw Error(ErrorKind::kNetwork, where + ": " + status + " (" + std::to_string(reply.attempts) + " attempts)");
  throw Error(kAnswer, where + ": " + status + ": the hub refuses the request");
}

Json HubRepository::get_json(const std::string& path) {
  const HttpReply reply = get(path, false, options_.backoff.max_attempts);
  if (!is_ok(reply)) refuse_package(name(), reply);
  return parse_json(reply.body, options_.endpoint + path.substr(0, path.find('?')), kAnswer, {kMaxAnswer, 32});
}

std::optional<bool> HubRepository::is_private() {
  const HttpReply reply = get(api(""), false, options_.backoff.max_attempts);
  if (reply.problem.empty() && reply.status == 404) return std::nullopt;
  if (!is_ok(reply)) refuse_package(name(), reply);
  const std::string where = options_.endpoint + api("");
  const Json info = parse_json(reply.body, where, kAnswer, {kMaxAnswer, 32});
  if (!info.is_object() || !info.contains("private") || !info["private"].is_boolean())
    throw Error(kAnswer, where + ": private: expected true or false: nobody could say who reads it");
  return info["private"].get<bool>();
}

HubRefs HubRepository::refs() {
  const Json answer = get_json(api("/refs"));
  const std::string where = options_.endpoint + api("/refs");
  const auto read = [&](const char* kind) {
    std::map<std::string, std::string> found;
    for (const Json& ref : json_array(answer, kind, kMaxEntries, where, kAnswer))
      found[json_string(ref, "name", where + ": " + kind, kAnswer)] =
          require_commit(json_string(ref, "targetCommit", where + ": " + kind, kAnswer), where + ": targetCommit");
    return found;
  };
  return {read("branches"), read("tags")};
}

HubTree HubRepository::tree(const std::string& commit) {
  const Json answer = get_json(api("/revision/" + commit + "?blobs=true"));
  const std::string where = options_.endpoint + api("/revision/" + commit);
  if (json_string(answer, "sha", where, kAnswer) != commit)
    throw Error(kAnswer, where + ": sha: expected the commit that was asked for");
  HubTree tree;
  for (const Json& file : json_array(answer, "siblings", kMaxEntries, where, kAnswer)) {
    const std::string path = json_string(file, "rfilename", where + ": siblings", kAnswer);
    require_harmless(path, where);
    const bool large = file.contains("lfs") && file["lfs"].is_object();
    tree[path] = {
        static_cast<uint64_t>(json_int(file, "size", {.low = 0, .high = INT64_MAX, .fallback = 0}, where, kAnswer)),
        large ? json_string(file["lfs"], "sha256", "", where, kAnswer)
              : json_string(file, "blobId", "", where, kAnswer)};
  }
  return tree;
}

std::string HubRepository::text(const std::string& commit, const std::string& path, size_t max_bytes) {
  const std::string url =
      options_.endpoint + "/" + hub_.repository() + "/resolve/" + commit + "/" + percent_encoded(path, true);
  const HttpReply reply = http_.send(
      [&] {
        HttpRequest r = request(url);
        r.redirects = Redirects::kAnywhere;
        r.timeout_s = 0;
        r.stall_timeout_s = options_.stall_timeout_s;
        r.max_body_bytes = max_bytes;
        return r;
      },
      options_.backoff);
  if (reply.problem.empty() && reply.status == 404 && reply.header("x-error-code") == "EntryNotFound") return "";
  if (!is_ok(reply)) refuse_package(url, reply);
  return reply.body;
}

void HubRepository::read_from(const std::string& commit, const std::string& path, uint64_t begin,
                              const std::function<void(std::string_view)>& take) {
  uint64_t at = begin;
  const RemoteFile file{
      path, options_.endpoint + "/" + hub_.repository() + "/resolve/" + commit + "/" + percent_encoded(path, true), "",
      0};
  read(
      file, [&at] { return at; },
      [&](uint64_t first, std::string_view bytes) {
        const uint64_t known = std::min<uint64_t>(at - first, bytes.size());
        take(bytes.substr(known));
        at += bytes.size() - known;
      });
}

HttpReply HubRepository::write(const std::string& method, const std::string& path, const Body& body,
                               std::initializer_list<long> tolerated, double timeout_s) {
  const HttpReply reply = http_.send(
      [&] {
        HttpRequest r = request(options_.endpoint + path);
        r.method = method;
        r.post = &body.bytes;
        r.headers.push_back(std::string("Content-Type: ") + body.type);
        if (body.type == kLfs) r.headers.push_back(std::string("Accept: ") + body.type);
        r.timeout_s = timeout_s;
        return r;
      },
      options_.backoff);
  const bool fine =
      reply.problem.empty() && std::find(tolerated.begin(), tolerated.end(), reply.status) != tolerated.end();
  if (!fine && !is_ok(reply)) refuse_package(name(), reply);
  return reply;
}

void HubRepository::create(bool as_private) {
  const Json wish = {{"name", hub_.name},
                     {"organization", hub_.organisation},
                     {"type", "model"},
                     {"visibility", as_private ? "private" : "public"}};
  write("POST", "/api/repos/create", {wish.dump(), kJson}, {409});
}

std::set<std::string> HubRepository::large_files(const std::string& branch,
                                                 const std::map<std::string, Sample>& files) {
  const std::string path = api("/preupload/" + percent_encoded(branch, false)), where = options_.endpoint + path;
  std::set<std::string> large;
  for (auto it = files.begin(); it != files.end();) {
    Json asked = Json::array();
    std::set<std::string> open;
    for (; it != files.end() && asked.size() < kPreuploadBatch; ++it) {
      asked.push_back({{"path", it->first}, {"sample", base64(it->second.begin)}, {"size", it->second.size}});
      open.insert(it->first);
    }
    const Json answer = parse_json(write("POST", path, {Json{{"files", asked}}.dump(), kJson}, {}).body, where, kAnswer,
                                   {kMaxAnswer, 32});
    for (const Json& file : json_array(answer, "files", kPreuploadBatch, where, kAnswer)) {
      const std::string name = json_string(file, "path", where, kAnswer),
                        mode = json_string(file, "uploadMode", where, kAnswer);
      if (open.erase(name) != 0 && mode == "lfs") large.insert(name);
    }
    if (!open.empty()) throw Error(kAnswer, where + ": does not say how " + *open.begin() + " is uploaded");
  }
  return large;
}

// Returns the URL of an LFS action. A mirror may pass on URLs of huggingface.co although it serves these paths itself,
// so the host is replaced by the endpoint.
std::string HubRepository::address(const Json& action, const std::string& where) const {
  std::string url = action.is_object() ? json_string(action, "href", where, kAnswer) : "";
  for (const std::string hub : {"https://huggingface.co/", "https://hub-ci.huggingface.co/"})
    if (url.starts_with(hub) && origin_of(options_.endpoint) != origin_of(hub))
      url = options_.endpoint + url.substr(hub.size() - 1);
  const bool plain = std::all_of(url.begin(), url.end(), [](char c) { return c > ' ' && c < 127; });
  if (url.empty() || url.size() > kMaxAddress || !plain || origin_of(url).empty() || !keeps_secrets(url))
    throw Error(kAnswer, where + ": expected an address of https, or of this machine, to upload to, found " +
                             (plain && !origin_of(url).empty() ? origin_of(url) : "none") + ": nothing is sent there");
  return url;
}

std::optional<HubUpload> HubRepository::ask_upload(const std::string& branch, const std::string& sha256,
                                                   uint64_t size) {
  const std::string path = "/" + hub_.repository() + ".git/info/lfs/objects/batch", where = options_.endpoint + path;
  const Json wish = {{"operation", "upload"},
                     {"transfers", {"basic", "multipart"}},
                     {"objects", Json::array({Json{{"oid", sha256}, {"size", size}}})},
                     {"hash_algo", "sha256"},
                     {"ref", {{"name", branch}}}};
  const HttpReply reply = write("POST", path, {wish.dump(), kLfs}, {});
  const Json answer = parse_json(reply.body, where, kAnswer, {kMaxAnswer, 32});
  const Json& objects = json_array(answer, "objects", 1, where, kAnswer);
  if (objects.size() != 1 || !objects[0].is_object() || json_string(objects[0], "oid", where, kAnswer) != sha256)
    throw Error(kAnswer, where + ": objects: expected the one that was asked for");
  const Json& object = objects[0];
  if (object.contains("error"))
    throw Error(kAnswer, where + ": the hub does not take the file: error " +
                             std::to_string(json_int(json_object(object, "error", 16, where, kAnswer), "code",
                                                     {.low = 0, .high = 999, .fallback = 0}, where, kAnswer)));
  if (!object.contains("actions") || object["actions"].is_null()) return std::nullopt;
  const Json &actions = json_object(object, "actions", 16, where, kAnswer),
             &put_it = json_object(actions, "upload", 16, where + ": actions", kAnswer);
  HubUpload to;
  to.url = address(put_it, where);
  if (actions.contains("verify") && !actions["verify"].is_null()) to.verify = address(actions["verify"], where);
  if (!to.verify.empty() && origin_of(to.verify) != origin_of(options_.endpoint))
    throw Error(kAnswer, where + ": verify: leads to " + origin_of(to.verify) + ", and the token goes to " +
                             origin_of(options_.endpoint) + " alone");
  const Json header = put_it.value("header", Json());
  if (!header.is_object() || !header.contains("chunk_size")) return to;
  to.part_bytes = number_of(header["chunk_size"], where + ": chunk_size");
  const uint64_t count = to.part_bytes ? (size + to.part_bytes - 1) / to.part_bytes : 0;
  if (count < 1 || count > kMaxParts)
    throw Error(kAnswer, where + ": chunk_size: " + std::to_string(size) + " bytes in parts of " +
                             std::to_string(to.part_bytes) + ": expected 1 to " + std::to_string(kMaxParts) + " parts");
  std::map<uint64_t, std::string> parts;  // part number → URL; the header has other keys, too
  for (const auto& [key, value] : header.items())
    if (!key.empty() && key.size() <= 6 && key.find_first_not_of("0123456789") == std::string::npos)
      parts[number_of(key, where)] = address({{"href", value}}, where);
  if (parts.size() != count)
    throw Error(kAnswer,
                where + ": " + std::to_string(parts.size()) + " addresses for " + std::to_string(count) + " parts");
  for (auto& [number, url] : parts) to.parts.push_back(std::move(url));
  return to;
}

HttpReply HubRepository::put(const std::string& url, const InputFile& file, uint64_t begin, uint64_t bytes,
                             const std::function<void(uint64_t)>& progress) {
  uint64_t furthest = 0;
  const HttpReply reply = http_.send(
      [&] {
        HttpRequest r = request(url);
        r.bearer = {};
        r.foreign = true;
        r.method = "PUT";
        r.upload_bytes = bytes;
        r.upload = [&](uint64_t at, std::span<char> out) {
          file.read(begin + at, std::as_writable_bytes(out));
          if (at + out.size() <= furthest) return;
          progress(at + out.size() - furthest);
          furthest = at + out.size();
        };
        r.timeout_s = 0;
        r.stall_timeout_s = kUploadStallS;
        r.max_body_bytes = 1u << 20;
        return r;
      },
      options_.backoff);
  if (!is_ok(reply))
    throw Error(ErrorKind::kNetwork,
                name() + ": " + file.path().filename().string() + " to " + origin_of(url) + ": " +
                    (reply.problem.empty() ? "HTTP " + std::to_string(reply.status) : reply.problem) + " (" +
                    std::to_string(reply.attempts) + " attempts): the same command again goes on with this file");
  return reply;
}

HttpReply HubRepository::post_to(const std::string& url, const std::string& body, bool with_token) {
  const HttpReply reply = http_.send(
      [&] {
        HttpRequest r = request(url);
        if (!with_token) r.bearer = {};
        r.foreign = !with_token;
        r.method = "POST";
        r.post = &body;
        r.headers.insert(r.headers.end(), {std::string("Content-Type: ") + kLfs, std::string("Accept: ") + kLfs});
        r.timeout_s = kCommitTimeoutS;
        r.max_body_bytes = 1u << 20;
        return r;
      },
      options_.backoff);
  if (!is_ok(reply)) refuse_package(name() + ": an upload's end at " + origin_of(url), reply);
  return reply;
}

void HubRepository::upload(const HubUpload& to, const std::string& sha256, const fs::path& file,
                           const std::function<void(uint64_t)>& progress) {
  const InputFile in(file, ErrorKind::kData);
  if (to.parts.empty()) put(to.url, in, 0, in.size(), progress);
  Json parts = Json::array();
  for (uint64_t at = 0; const std::string& url : to.parts) {
    const uint64_t bytes = std::min(to.part_bytes, in.size() - std::min(at, in.size()));
    const std::string etag = put(url, in, at, bytes, progress).header("etag");
    if (etag.empty() || etag.size() > kMaxEtag)
      throw Error(kAnswer, name() + ": " + origin_of(url) + ": expected an ETag for a part, found one of " +
                               std::to_string(etag.size()) + " bytes");
    parts.push_back({{"partNumber", parts.size() + 1}, {"etag", etag}});
    at += bytes;
  }
  if (!to.parts.empty())
    post_to(to.url, Json{{"oid", sha256}, {"parts", parts}}.dump(-1, ' ', false, Json::error_handler_t::replace),
            false);
  if (!to.verify.empty()) post_to(to.verify, Json{{"oid", sha256}, {"size", in.size()}}.dump(), true);
}

std::optional<std::string> HubRepository::commit(const std::string& branch, const std::string& parent,
                                                 const std::string& summary, const std::string& description,
                                                 const HubChange& change) {
  const auto line = [](const char* key, const Json& value) {
    return Json{{"key", key}, {"value", value}}.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  };
  std::string body = line("header", {{"summary", summary}, {"description", description}, {"parentCommit", parent}});
  for (const auto& [path, bytes] : change.files)
    body += line("file", {{"content", base64(bytes)}, {"path", path}, {"encoding", "base64"}});
  for (const auto& [path, file] : change.large)
    body += line("lfsFile", {{"path", path}, {"algo", "sha256"}, {"oid", file.digest}, {"size", file.size}});
  for (const std::string& path : change.removed) body += line("deletedFile", {{"path", path}});
  const std::string path = api("/commit/" + percent_encoded(branch, false));
  const HttpReply reply = write("POST", path, {std::move(body), kNdjson}, {404, 409, 412}, kCommitTimeoutS);
  if (!is_ok(reply)) return std::nullopt;
  const std::string where = options_.endpoint + path;
  return require_commit(
      json_string(parse_json(reply.body, where, kAnswer, {kMaxAnswer, 32}), "commitOid", where, kAnswer),
      where + ": commitOid");
}

bool HubRepository::create_branch(const std::string& branch, const std::string& commit) {
  return write("POST", api("/branch/" + percent_encoded(branch, false)),
               {Json{{"startingPoint", commit}}.dump(), kJson}, {409})
             .status != 409;
}
bool HubRepository::create_tag(const std::string& tag, const std::string& commit) {
  return write("POST", api("/tag/" + commit), {Json{{"tag", tag}}.dump(), kJson}, {409}).status != 409;
}
void HubRepository::remove_branch(const std::string& branch) {
  write("DELETE", api("/branch/" + percent_encoded(branch, false)), {"", kJson}, {404});
}
void HubRepository::remove_tag(const std::string& tag) {
  write("DELETE", api("/tag/" + percent_encoded(tag, false)), {"", kJson}, {404});
}

}  // namespace specdec::net
