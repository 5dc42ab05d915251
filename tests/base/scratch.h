// Helpers that many tests share: a directory that is removed afterwards, a tiny valid model, and checks of Error.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/safetensors.h"

namespace specdec::testing {

class Scratch {
 public:
  // `in_memory` uses tmpfs if there is one, for tests that fsync hundreds of times.
  explicit Scratch(bool in_memory = false) {
    const bool memory = in_memory && ::access("/dev/shm", W_OK) == 0;
    std::string name = ((memory ? fs::path("/dev/shm") : fs::temp_directory_path()) / "specdec-test-XXXXXX").string();
    if (!::mkdtemp(name.data())) throw Error(ErrorKind::kIo, name + ": no temporary directory");
    root_ = name;
  }
  ~Scratch() {
    std::error_code ec;
    fs::remove_all(root_, ec);
  }
  Scratch(const Scratch&) = delete;
  fs::path operator/(const std::string& name) const { return root_ / name; }
  const fs::path& root() const { return root_; }

 private:
  fs::path root_;
};

// Writes a test file without the code under test. Removes an existing file first: truncating and rewriting it would be
// slow, because ext4 flushes such a file when it is closed.
inline void put(const fs::path& path, const std::string& bytes) {
  fs::create_directories(path.parent_path());
  fs::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
}
inline std::string get(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Requires that f() throws an Error of the given kind, and returns the error's message.
inline std::string error_of(const std::function<void()>& f, ErrorKind kind) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.kind()), static_cast<int>(kind)) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

// Requires that f() throws an Error of the given kind whose message contains each string of `parts`.
inline void expect_error(ErrorKind kind, const std::vector<std::string>& parts, const std::function<void()>& f) {
  const std::string message = error_of(f, kind);
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' not in: " << message;
}

// Runs f in a child process with the environment variable `variable` set to `value` (nullptr: none). Returns 0 if f
// returned, the exit code of the Error that f threw, 99 for another exception, the code that f passed to _exit, or 128
// + the signal that ended the child. Returns -1 if the child could not be started.
inline int in_child(const char* variable, const std::string& value, const std::function<void()>& f) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (variable) ::setenv(variable, value.c_str(), 1);
    try {
      f();
      ::_exit(0);
    } catch (const Error& e) {
      ::_exit(exit_code(e.kind()));
    } catch (...) {
      ::_exit(99);
    }
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// For n = 1, 2, …: calls before(), runs f in a child process that is killed at its n-th change of the file system, and
// calls check(n) to inspect the remaining files. Stops at the first n for which f ends by itself, because it makes
// fewer than n changes. Returns the number of kills.
inline int for_each_kill_point(const std::function<void()>& before, const std::function<void()>& f,
                               const std::function<void(int)>& check) {
  for (int n = 1; n < 5000; ++n) {
    before();
    const int code = in_child("SPECDEC_KILL_AT", std::to_string(n), f);
    if (code == 0) return n - 1;
    EXPECT_EQ(code, 128 + SIGKILL) << "kill point " << n;
    check(n);
    if (::testing::Test::HasFatalFailure() || code != 128 + SIGKILL) return n;
  }
  ADD_FAILURE() << "never finished";
  return 5000;
}

struct TinyModel {
  int layers = 1;
  int bump = 0;  // added to the weights' bytes, to make different models of the same shape
  int64_t vocab = 320, hidden = 32;
  std::string chat_template = "{{ messages }}";
  int shards = 1;
};

// Writes a Hugging Face model directory with every file that the code in base/ reads. The weights are a fixed pattern
// of finite numbers.
inline void write_tiny_model(const fs::path& directory, const TinyModel& m = {}) {
  const Json config = {{"architectures", {"LlamaForCausalLM"}},
                       {"model_type", "llama"},
                       {"vocab_size", m.vocab},
                       {"hidden_size", m.hidden},
                       {"num_hidden_layers", m.layers},
                       {"torch_dtype", "float32"},
                       {"transformers_version", "5.23.0"}};
  put(directory / "config.json", config.dump(2));
  put(directory / "generation_config.json", R"({"eos_token_id": 2})");
  put(directory / "tokenizer.json", R"({"version": "1.0", "model": {"vocab": {"a": 0}}})");
  put(directory / "tokenizer_config.json",
      Json{{"bos_token", "<s>"}, {"eos_token", {{"content", "</s>"}}}, {"chat_template", m.chat_template}}.dump());
  std::map<std::string, std::vector<int64_t>> shapes = {{"model.embed_tokens.weight", {m.vocab, m.hidden}},
                                                        {"model.norm.weight", {m.hidden}}};
  for (int i = 0; i < m.layers; ++i)
    shapes["model.layers." + std::to_string(i) + ".mlp.down_proj.weight"] = {m.hidden, m.hidden};
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::vector<TensorToWrite>> shards(static_cast<size_t>(m.shards));
  Json weight_map = Json::object();
  size_t number = 0;
  for (const auto& [name, shape] : shapes) {
    size_t size = 4;
    for (int64_t d : shape) size *= static_cast<size_t>(d);
    auto& data = bytes.emplace_back(size);
    for (size_t i = 0; i < size; ++i)
      data[i] = static_cast<std::byte>(i % 4 == 3 ? 0x3c : i * 7 + i / 251 + number + static_cast<size_t>(m.bump));
    const size_t shard = number++ % shards.size();
    shards[shard].push_back({name, "F32", shape, {}});
    weight_map[name] = "model-" + std::to_string(shard) + ".safetensors";
  }
  number = 0;
  for (const auto& item : shapes) {
    auto& list = shards[number % shards.size()];
    for (auto& t : list)
      if (t.name == item.first) t.data = bytes[number];
    ++number;
  }
  if (m.shards == 1) return write_safetensors(directory / "model.safetensors", shards[0]);
  for (size_t i = 0; i < shards.size(); ++i)
    write_safetensors(directory / ("model-" + std::to_string(i) + ".safetensors"), shards[i]);
  put(directory / "model.safetensors.index.json",
      Json{{"metadata", {{"total_size", 1}}}, {"weight_map", weight_map}}.dump());
}

}  // namespace specdec::testing
