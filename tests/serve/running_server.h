// A server on the loopback interface whose step runner needs no model, and helpers that send requests to this server.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <optional>
#include <thread>

#include "deploy/serve/server.h"
#include "tests/serve/client.h"
#include "tests/serve/fixture.h"

namespace specdec::deploy {

inline constexpr char kTemplate[] =
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools at /home/secret') }}{% endif %}{{ "
    "m.content }}{% endfor %}";

struct Config {
  ServeOptions options;
  ServeLimits limits;
  bool chat = true;
  int64_t max_context = 2000;
};

struct Running {
  explicit Running(Config setup = {}) : chat_template(kTemplate, "<s>", "</s>") {
    setup.options.port = 0;
    server.emplace(setup.options, setup.limits, clock);
    port = server->port();
    model.card = {{"tiny"}, std::string(64, 'a'), std::string(64, 'b'), "", 1700000000, setup.max_context};
    model.tokenizer = &byte_tokenizer();
    model.chat_template = setup.chat ? &chat_template : nullptr;
    model.eos_ids = {kEos};
    model.vocab_size = kVocab;
    model.max_context = setup.max_context;
  }
  void start() {
    std::atomic<bool> ready{false};
    main = std::thread([this, &ready] {
      try {
        server->run(model, runner,
                    {[this] { return stop.load(); }, [&ready] { ready.store(true); },
                     [this] { return reload.exchange(false); }});
      } catch (const DeviceLost& e) {
        lost.emplace(e);
      } catch (const Error& e) {
        failure.emplace(e);
      }
    });
    while (!ready.load()) std::this_thread::yield();
  }
  void finish() {
    stop.store(true);
    if (main.joinable()) main.join();
  }
  ~Running() {
    runner.open_gate();
    finish();
  }
  Response ask(const std::string& request) {
    Client c(port);
    c.send(request);
    return c.read();
  }
  Json complete(const std::string& prompt, const std::string& more = "") {
    const Response r = ask(
        post("/v1/completions", Json{{"prompt", prompt}}.dump().substr(0, Json{{"prompt", prompt}}.dump().size() - 1) +
                                    (more.empty() ? "" : "," + more) + "}"));
    EXPECT_EQ(r.status, 200) << r.body;
    return Json::parse(r.body, nullptr, false);
  }

  SystemClock clock;
  FakeRunner runner;
  text::ChatTemplate chat_template;
  ServedModel model;
  std::optional<Server> server;
  int port = 0;
  std::atomic<bool> stop{false}, reload{false};
  std::thread main;
  std::optional<Error> failure;
  std::optional<DeviceLost> lost;
};

// Parses the JSON of each event of a stream.
inline std::vector<Json> events_of(const std::string& body) {
  std::vector<Json> events;
  for (size_t at = 0; (at = body.find("data: ", at)) != std::string::npos; ++at)
    if (body.compare(at, 7, "data: {") == 0)
      events.push_back(Json::parse(body.substr(at + 6, body.find('\n', at) - at - 6)));
  return events;
}

inline void wait_until(const std::function<bool()>& condition) {
  bool met = condition();  // called once per attempt, because the call may have side effects
  for (int i = 0; i < 60000 && !met; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    met = condition();
  }
  EXPECT_TRUE(met) << "not reached in a minute";
}

}  // namespace specdec::deploy
