#include "net/hub_blob.h"

#include <sys/random.h>

#include <charconv>
#include <chrono>
#include <optional>

#include "base/file.h"
#include "base/file_lock.h"
#include "base/format.h"
#include "base/log.h"
#include "base/sha256.h"

namespace specdec::net {

namespace {

constexpr double kLockPatienceS = 60;  // seconds without activity of the lock's holder after which the lock is ignored
const char kSuffix[] = ".incomplete";
constexpr int kMaxHosts = 3;  // redirects from host to host, such as from a mirror to the hub

std::optional<uint64_t> number(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Turns W/"abc" and "abc" into abc, by which huggingface_hub names blobs.
std::string bare_etag(std::string etag) {
  if (etag.starts_with("W/")) etag.erase(0, 2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') etag = etag.substr(1, etag.size() - 2);
  return etag;
}

// Returns the unfinished downloads of this blob, the longest first.
std::vector<fs::path> incomplete(const fs::path& blob) {
  std::vector<std::pair<uint64_t, fs::path>> found;
  std::error_code ec;
  for (fs::directory_iterator it(blob.parent_path(), ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with(blob.filename().string() + ".") && name.ends_with(kSuffix) && it->is_regular_file(ec) &&
        !it->is_symlink(ec))
      found.emplace_back(it->file_size(ec), it->path());
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<fs::path> paths;
  for (auto& [size, path] : found) paths.push_back(std::move(path));
  return paths;
}

bool shows_life(const fs::path& blob) {
  std::error_code ec;
  for (const fs::path& path : incomplete(blob))
    if (const auto written = fs::last_write_time(path, ec);
        !ec && fs::file_time_type::clock::now() - written < std::chrono::duration<double>(kLockPatienceS))
      return true;
  return false;
}

// Returns the lock, or nothing if its holder showed no activity for a minute or the file system has no locks.
std::unique_ptr<FileLock> wait_for_lock(const fs::path& repository, const fs::path& blob) {
  const fs::path file =
      repository.parent_path() / ".locks" / repository.filename() / (blob.filename().string() + ".lock");
  for (double waited = 0; waited < kLockPatienceS;) {
    try {
      make_directories(file.parent_path());
      return std::make_unique<FileLock>(file);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kNetwork) return nullptr;
      if (waited == 0)
        log(LogLevel::kInfo,
            blob.filename().string().substr(0, 12) + ": waiting for another process that downloads it");
    }
    interruptible_sleep(0.2);
    waited = shows_life(blob) ? 0.2 : waited + 0.2;
  }
  return nullptr;
}

fs::path unique_name(const fs::path& blob) {
  uint32_t bits = 0;
  if (::getrandom(&bits, sizeof bits, 0) != sizeof bits)
    throw Error(ErrorKind::kIo, blob.string() + ": no random name for the temporary file");
  return blob.string() + format(".%08x", bits) + kSuffix;
}

// Checks a file's digest. The ETag is a SHA-256, or for small files git's blob id; some mirrors give a SHA-1 of the
// bytes.
bool is_right(const fs::path& path, const RemoteFile& file) {
  if (file.etag.size() == 64) return file.etag == sha256_file(path);
  const std::string bytes = read_file(path, file.size, ErrorKind::kModel);
  return file.etag == git_blob_id(bytes) || file.etag == sha1_hex(bytes);
}

// Appends to `path` until it has file.size bytes.
void complete(const fs::path& path, const RemoteFile& file, HubSource& source,
              const std::function<void(uint64_t)>& progress) {
  std::error_code ec;
  uint64_t at = fs::exists(path, ec) ? fs::file_size(path) : 0;
  std::optional<OutputFile> out(std::in_place, path, OutputFile::Open::kResume);
  while (at < file.size) {
    const uint64_t before = at;
    source.read(
        file, [&at] { return at; },
        [&](uint64_t first, std::string_view bytes) {
          if (first == 0 && at != 0) {  // the server sends the file from its beginning
            out.reset();
            fs::resize_file(path, 0);
            out.emplace(path, OutputFile::Open::kResume);
            at = 0;
          }
          if (first != at || bytes.size() > file.size - at)
            throw Error(ErrorKind::kModel, file.url + ": the server sends more or other bytes than the " +
                                               std::to_string(file.size) + " it promised");
          out->write(bytes);
          at += bytes.size();
          if (progress) progress(at);
        });
    if (at <= before)
      throw Error(ErrorKind::kNetwork,
                  file.url + ": ended after " + std::to_string(at) + " of " + std::to_string(file.size) + " bytes");
  }
  out->finish();
}

}  // namespace

void require_harmless(const std::string& name, const std::string& where) {
  bool bad = name.empty() || name.size() > 1024 || name.front() == '/' || name.find('\\') != std::string::npos;
  for (const char c : name) bad |= static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  for (size_t begin = 0; !bad && begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    bad = part.empty() || part == "." || part == "..";
    begin = end + 1;
  }
  if (bad)
    throw Error(
        ErrorKind::kModel,
        where + ": the hub lists a file with a name that leads elsewhere or is malformed: nothing of it is taken");
}

HubSource::HubSource(const HubName& hub, const HubOptions& options) : hub_(hub), options_(options) {
  if (keeps_secrets(options.endpoint)) {
    bearer_ = options.token;
  } else if (!options.token.empty()) {
    log(LogLevel::kWarn,
        options.endpoint + " is not https: the token of " + options.token_source + " is not sent to it");
  }
}

HttpRequest HubSource::request(const std::string& url) const {
  HttpRequest request;
  request.url = url;
  request.bearer = bearer_;
  request.headers = {"Accept-Encoding: identity"};
  request.connect_timeout_s = request.timeout_s = options_.metadata_timeout_s;
  request.max_body_bytes = 16u << 20;
  return request;
}

// Chooses the message by the hub's X-Error-Code header and the status. Does not repeat the hub's own text.
void HubSource::refuse(const std::string& url, const HttpReply& reply) const {
  const std::string code = reply.header("x-error-code"), model = hub_.text(),
                    page = options_.endpoint + "/" + hub_.repository();
  if (!reply.problem.empty())
    throw Error(ErrorKind::kNetwork, url + ": " + reply.problem + " (" + std::to_string(reply.attempts) + " attempts)");
  const std::string status = "HTTP " + std::to_string(reply.status);
  if (code == "GatedRepo" || (reply.status == 403 && code.empty()))
    throw Error(ErrorKind::kUsage, model + ": gated (" + status + "): accept its licence at " + page +
                                       " and set HF_TOKEN to a token that may read it" +
                                       (bearer_.empty() ? "" : "; the one of " + options_.token_source + " may not"));
  if (code == "RevisionNotFound")
    throw Error(ErrorKind::kModel, model + ": " + page + " has no revision '" + hub_.revision + "'");
  if (code == "EntryNotFound") throw Error(ErrorKind::kModel, url + ": the hub lists this file and does not have it");
  if (code == "RepoNotFound" || reply.status == 404 || (reply.status == 401 && bearer_.empty()))
    throw Error(ErrorKind::kModel,
                model + ": no local directory, and " + options_.endpoint + " has no such model (" + status +
                    "): check the name" +
                    (bearer_.empty() ? ", or set HF_TOKEN if it is private"
                                     : ", and that the token of " + options_.token_source + " may read it"));
  if (reply.status == 401 || reply.status == 403)
    throw Error(ErrorKind::kUsage, url + ": " + status + ": the token of " + options_.token_source + " is refused");
  throw Error(ErrorKind::kNetwork, url + ": " + status + " (" + std::to_string(reply.attempts) + " attempts)");
}

HttpReply HubSource::get(const std::string& path, bool head, int max_attempts) {
  Backoff backoff = options_.backoff;
  backoff.max_attempts = max_attempts;
  return http_.send(
      [&] {
        HttpRequest r = request(options_.endpoint + path);
        r.head = head;
        r.redirects = Redirects::kSameOrigin;
        return r;
      },
      backoff);
}

HttpReply HubSource::ask(const std::string& path, bool head, int max_attempts) {
  HttpReply reply = get(path, head, max_attempts);
  std::string url = options_.endpoint + path;
  // A HEAD request ends at a redirect whose headers describe the file. Any other redirect to another host is assumed to
  // lead from a mirror to the hub and is followed.
  const auto describes = [](const HttpReply& r) {
    return !r.header("x-linked-size").empty() && !(r.header("x-linked-etag") + r.header("etag")).empty();
  };
  for (int hops = 0; !reply.redirect.empty() && !(head && describes(reply)); ++hops) {
    if (hops == kMaxHosts || (url.starts_with("https:") && !reply.redirect.starts_with("https:")))
      throw Error(ErrorKind::kModel, SecretUrl(url).shown() + ": redirects to " + origin_of(reply.redirect) +
                                         ", which is not followed: set HF_ENDPOINT to the hub itself");
    url = reply.redirect;
    Backoff backoff = options_.backoff;
    backoff.max_attempts = max_attempts;
    reply = http_.send(
        [&] {
          HttpRequest r = request(url);
          r.foreign = true;  // so the token is sent only to the endpoint
          r.head = head;
          r.redirects = Redirects::kSameOrigin;
          return r;
        },
        backoff);
  }
  if (!reply.problem.empty() || (reply.status != 200 && reply.redirect.empty())) refuse(SecretUrl(url).shown(), reply);
  return reply;
}

RemoteFile HubSource::describe(const std::string& commit, const std::string& name) {
  const std::string path = "/" + hub_.repository() + "/resolve/" + commit + "/" + name;
  const HttpReply reply = ask(path, true, options_.backoff.max_attempts);
  const auto either = [&](const char* linked, const char* plain) {
    return reply.header(linked).empty() ? reply.header(plain) : reply.header(linked);
  };
  RemoteFile file{name, options_.endpoint + path, bare_etag(either("x-linked-etag", "etag")), 0};
  const std::string length = either("x-linked-size", reply.status == 200 ? "content-length" : "x-linked-size");
  const auto size = number(length);
  const bool hex = file.etag.find_first_not_of("0123456789abcdef") == std::string::npos &&
                   (file.etag.size() == 64 || file.etag.size() == 40);
  if (!size || !hex)
    throw Error(ErrorKind::kModel, file.url + ": expected a size and a SHA-256 or git blob id as ETag, found '" +
                                       length.substr(0, 32) + "' and '" + file.etag.substr(0, 80) +
                                       "': nothing could be checked (is HF_ENDPOINT a Hugging Face hub?)");
  file.size = *size;
  return file;
}

void HubSource::read(const RemoteFile& file, const std::function<uint64_t()>& begin,
                     const std::function<void(uint64_t, std::string_view)>& take) {
  const HttpReply reply = http_.send(
      [&] {
        HttpRequest r = request(file.url);
        r.redirects = Redirects::kAnywhere;
        r.timeout_s = 0;
        r.stall_timeout_s = options_.stall_timeout_s;
        const uint64_t start = begin();
        if (start > 0) r.headers.push_back("Range: bytes=" + std::to_string(start) + "-");
        r.on_body = [&, first = true, next = start](const HttpReply& head, std::string_view bytes) mutable {
          if (first && head.status == 200) next = 0;
          if (first && head.status == 206 &&
              !head.header("content-range").starts_with("bytes " + std::to_string(next) + "-"))
            throw Error(ErrorKind::kModel, file.url + ": asked for the bytes from " + std::to_string(next) +
                                               " on, the server sends '" + head.header("content-range").substr(0, 64) +
                                               "'");
          first = false;
          take(next, bytes);
          next += bytes.size();
        };
        return r;
      },
      options_.backoff);
  if (!reply.problem.empty() || (reply.status != 200 && reply.status != 206)) refuse(file.url, reply);
}

bool has_blob(const fs::path& repository, const RemoteFile& file) {
  std::error_code ec;
  const fs::path blob = repository / "blobs" / file.etag;
  return fs::is_regular_file(blob, ec) && fs::file_size(blob, ec) == file.size;
}

void fetch_blob(const fs::path& repository, const RemoteFile& file, HubSource& source,
                const std::function<void(uint64_t)>& progress) {
  const fs::path blob = repository / "blobs" / file.etag;
  const auto lock = wait_for_lock(repository, blob);
  if (has_blob(repository, file)) return;
  const fs::path own = unique_name(blob);
  bool continued = false;
  // Continues an earlier download only under the lock, so that no other process writes to the same file. On a file
  // system whose locks have no effect, two processes may append the same bytes; the check of the digest then fails.
  if (const auto left = lock ? incomplete(blob) : std::vector<fs::path>();
      !left.empty() && fs::file_size(left.front()) <= file.size) {
    rename_file(left.front(), own);
    continued = fs::file_size(own) > 0;
  }
  for (;; continued = false) {
    complete(own, file, source, progress);
    if (is_right(own, file)) break;
    remove_tree(own);
    if (!continued)
      throw Error(ErrorKind::kModel, file.url + ": the bytes received are not those the hub describes (" +
                                         (file.etag.size() == 64 ? "SHA-256 " : "git blob id ") +
                                         file.etag.substr(0, 12) +
                                         "…): a damaged mirror, proxy or disk; nothing was kept");
  }
  rename_file(own, blob);
}

}  // namespace specdec::net
