#include "monitor/source.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/sha256.h"
#include "net/http_client.h"

namespace specdec::monitor {

namespace {

constexpr size_t kMaxLine = 64 << 10;
constexpr size_t kBlock = 1 << 20;
constexpr size_t kMaxPosition = 64;
constexpr size_t kMaxResponse = 16 << 20;

struct Sample {
  std::string name;
  std::map<std::string, std::string> labels;
  double value = 0;
};

[[noreturn]] void bad_line(const std::string& where, size_t number, const std::string& reason) {
  throw PageError(where + ": line " + std::to_string(number) + ": " + reason + ", expected Prometheus text format 0.0.4");
}

// name{key="value",…} number [timestamp]
Sample parse_sample(const std::string& line, const std::string& where, size_t number) {
  Sample s;
  size_t i = 0;
  while (i < line.size() && line[i] != '{' && line[i] != ' ' && line[i] != '\t') s.name += line[i++];
  if (s.name.empty()) bad_line(where, number, "no name");
  if (i < line.size() && line[i] == '{') {
    ++i;
    while (i < line.size() && line[i] != '}') {
      std::string key, value;
      while (i < line.size() && line[i] != '=') key += line[i++];
      if (i + 1 >= line.size() || line[i + 1] != '"') bad_line(where, number, "a label without a quoted value");
      for (i += 2; i < line.size() && line[i] != '"'; ++i) {
        if (line[i] == '\\' && i + 1 < line.size()) ++i;
        value += line[i];
      }
      if (i >= line.size()) bad_line(where, number, "an unclosed label");
      s.labels[key] = value;
      if (++i < line.size() && line[i] == ',') ++i;
    }
    if (i >= line.size()) bad_line(where, number, "an unclosed brace");
    ++i;
  }
  const char* begin = line.c_str() + i;
  char* end = nullptr;
  s.value = std::strtod(begin, &end);
  if (end == begin) bad_line(where, number, "no number");
  return s;
}

void add_at(std::vector<double>& values, const Sample& s, const std::string& where, size_t number) {
  const auto label = s.labels.find("position");
  if (label == s.labels.end() || label->second.empty() || label->second.size() > 3 ||
      !std::all_of(label->second.begin(), label->second.end(), [](char c) { return c >= '0' && c <= '9'; }))
    bad_line(where, number, "a series by position without a position");
  const size_t position = std::stoul(label->second);
  if (position > kMaxPosition) bad_line(where, number, "position " + label->second + " is above " + std::to_string(kMaxPosition));
  if (values.size() <= position) values.resize(position + 1, 0.0);
  values[position] += s.value;
}

void add_sample(Counters& c, const Sample& s, const std::string& where, size_t number) {
  const size_t colon = s.name.find(':');
  const std::string prefix = s.name.substr(0, colon);
  if (colon == std::string::npos || (prefix != "specdec" && prefix != "vllm")) return;
  const std::string name = s.name.substr(colon + 1);
  if (name == "info") {
    const auto label = [&](const char* key) { return s.labels.count(key) ? s.labels.at(key) : std::string(); };
    c.draft = label("draft");
    c.target = label("target");
    return;
  }
  if (!std::isfinite(s.value) || s.value < 0) bad_line(where, number, s.name + " is no count");
  if (name == "generation_tokens_total" || name == "generated_tokens_total") c.generated += s.value;
  if (name.rfind("spec_decode_", 0) != 0) return;
  c.any = true;
  if (name == "spec_decode_num_drafts_total") c.drafts += s.value;
  if (name == "spec_decode_num_draft_tokens_total") c.drafted += s.value;
  if (name == "spec_decode_num_accepted_tokens_total") c.accepted += s.value;
  if (name == "spec_decode_num_accepted_tokens_per_pos_total") add_at(c.accepted_at, s, where, number);
  if (name == "spec_decode_num_reached_tokens_per_pos_total") add_at(c.reached_at, s, where, number);
  if (name == "spec_decode_overlap_sum_per_pos_total") add_at(c.overlap_sum_at, s, where, number);
}

std::vector<double> minus(const std::vector<double>& now, const std::vector<double>& before) {
  std::vector<double> result = now;
  for (size_t i = 0; i < result.size() && i < before.size(); ++i) result[i] = now[i] >= before[i] ? now[i] - before[i] : now[i];
  return result;
}

}  // namespace

std::vector<fs::path> record_files(const fs::path& source) {
  std::error_code ec;
  const fs::file_status status = fs::status(source, ec);
  if (fs::is_regular_file(status)) return {source};
  if (!fs::is_directory(status))
    throw Error(ErrorKind::kData, source.string() + ": " + (fs::exists(status) ? "neither a file nor a directory" : "no such file or directory") +
                                      ", expected acceptance records (*.jsonl)");
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(source))
    if (entry.is_regular_file() && entry.path().extension() == ".jsonl") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::string file_identity(const fs::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) throw Error(ErrorKind::kData, file.string() + ": no such file, expected acceptance records");
  return std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino);
}

ReadFigures read_records(const fs::path& file, const std::string& identity, FilePosition& position, const std::function<void(const AcceptanceRecord&)>& take) {
  const InputFile input(file, ErrorKind::kData);
  if (file_identity(file) != identity) throw Error(ErrorKind::kNetwork, file.string() + ": was rotated while it was opened: try again");
  const auto head = [&](uint64_t offset) {
    std::string bytes(static_cast<size_t>(std::min<uint64_t>(256, offset)), '\0');
    input.read(0, std::as_writable_bytes(std::span(bytes)));
    return sha256_hex(bytes);
  };
  if (position.offset > input.size() || (position.offset > 0 && head(position.offset) != position.head)) position = {};
  ReadFigures figures;
  int64_t line_number = 0;
  bool skipping = false;   // inside a line that is too long
  std::string buffer;
  uint64_t read_to = position.offset;
  const auto broken = [&](const std::string& reason) {
    if (++figures.broken_lines == 1) figures.first_problem = file.string() + ": line " + std::to_string(line_number) + " since the last check: " + reason;
  };
  while (read_to < input.size()) {
    const size_t take_bytes = static_cast<size_t>(std::min<uint64_t>(kBlock, input.size() - read_to));
    const size_t old = buffer.size();
    buffer.resize(old + take_bytes);
    input.read(read_to, std::as_writable_bytes(std::span(buffer.data() + old, take_bytes)));
    read_to += take_bytes;
    size_t begin = 0;
    for (size_t end = buffer.find('\n', old); end != std::string::npos; end = buffer.find('\n', begin)) {
      const std::string_view line(buffer.data() + begin, end - begin);
      position.offset += line.size() + 1;
      begin = end + 1;
      ++line_number;
      if (skipping) {
        skipping = false;
        continue;
      }
      if (line.empty()) continue;
      try {
        if (line.size() > kMaxLine) throw Error(ErrorKind::kData, "longer than 64 KiB");
        take(acceptance_record_from_line(line, "record"));
        ++figures.records;
      } catch (const Error& e) {
        broken(e.what());
      }
    }
    buffer.erase(0, begin);
    if (buffer.size() > kMaxLine) {
      if (!skipping) broken("longer than 64 KiB");
      skipping = true;
      position.offset += buffer.size();
      buffer.clear();
    }
  }
  if (position.offset > 0) position.head = head(position.offset);
  return figures;
}

Counters parse_exposition(const std::string& text, const std::string& where) {
  Counters c;
  size_t begin = 0, number = 0;
  while (begin < text.size()) {
    size_t end = text.find('\n', begin);
    if (end == std::string::npos) end = text.size();
    if (++number > 100000) throw PageError(where + ": more than 100,000 lines");
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty() || line[0] == '#' || line == "\r") continue;
    add_sample(c, parse_sample(line, where, number), where, number);
  }
  return c;
}

Counters difference(const Counters& now, const Counters& before) {
  const auto fell = [](double a, double b) { return a < b; };
  // One counter that fell means the process restarted: all of its counters began again.
  if (fell(now.drafts, before.drafts) || fell(now.drafted, before.drafted) || fell(now.accepted, before.accepted)) return now;
  Counters d = now;
  d.drafts -= before.drafts;
  d.drafted -= before.drafted;
  d.accepted -= before.accepted;
  d.generated = std::max(0.0, now.generated - before.generated);
  d.accepted_at = minus(now.accepted_at, before.accepted_at);
  d.reached_at = minus(now.reached_at, before.reached_at);
  d.overlap_sum_at = minus(now.overlap_sum_at, before.overlap_sum_at);
  return d;
}

Json to_json(const Counters& c) {
  return {{"any", c.any},           {"drafts", c.drafts},           {"drafted", c.drafted},     {"accepted", c.accepted},
          {"generated", c.generated}, {"accepted_at", c.accepted_at}, {"reached_at", c.reached_at}, {"overlap_sum_at", c.overlap_sum_at}};
}

Counters counters_from_json(const Json& o, const std::string& where) {
  const auto list = [&](const char* key) {
    if (!o.contains(key) || !o[key].is_array() || o[key].size() > kMaxPosition + 1) throw Error(ErrorKind::kData, where + ": " + key + ": expected a list");
    std::vector<double> values;
    for (const Json& v : o[key]) {
      if (!v.is_number()) throw Error(ErrorKind::kData, where + ": " + key + ": expected numbers");
      values.push_back(v.get<double>());
    }
    return values;
  };
  const auto number = [&](const char* key) { return json_double(o, key, 0, 1e300, where, ErrorKind::kData); };
  Counters c;
  c.any = json_bool(o, "any", false, where, ErrorKind::kData);
  c.drafts = number("drafts");
  c.drafted = number("drafted");
  c.accepted = number("accepted");
  c.generated = number("generated");
  c.accepted_at = list("accepted_at");
  c.reached_at = list("reached_at");
  c.overlap_sum_at = list("overlap_sum_at");
  return c;
}

bool is_url(const std::string& text) { return text.rfind("http://", 0) == 0 || text.rfind("https://", 0) == 0; }

std::string fetch(const std::string& url, const std::string& api_key) {
  net::HttpRequest request;
  request.url = url;
  request.bearer = api_key;
  request.timeout_s = 30;
  request.max_body_bytes = kMaxResponse;
  net::HttpReply reply = net::HttpClient().once(request);
  if (!reply.problem.empty()) throw Error(ErrorKind::kNetwork, url + ": " + reply.problem);
  if (reply.status != 200)
    throw Error(ErrorKind::kNetwork, url + ": HTTP " + std::to_string(reply.status) + ", expected 200 (" + (reply.status == 401 ? "give --api-key-file" : "is this a /metrics page?") + ")");
  return std::move(reply.body);
}

}  // namespace specdec::monitor
