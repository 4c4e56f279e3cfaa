/* cc -shared -fPIC -o huge.node huge.c -I/usr/include/node $(pkg-config --cflags --libs tiexec) */
#include <node_api.h>
#include <stdio.h>
#include <tiexec.h>

/* attach(settings): puts node's own text, and that of all addons loaded by now, on huge pages. */
static napi_value attach(napi_env env, napi_callback_info info)
{
    char settings[256] = "";
    struct tiexec_options options = {.size = sizeof options, .settings = settings};
    struct tiexec_result result = {.size = sizeof result};
    napi_value argument, object, number;
    size_t count = 1;

    napi_get_cb_info(env, info, &count, &argument, NULL, NULL);
    if (count == 1)
        napi_get_value_string_utf8(env, argument, settings, sizeof settings, NULL);
    /* The program goes on in any case. */
    if (tiexec_self(&options, &result))
        fprintf(stderr, "text stays on base pages: %s: %s\n", result.reason, result.detail);
    napi_create_object(env, &object);
    napi_create_int64(env, (int64_t)result.huge_bytes, &number);
    napi_set_named_property(env, object, "hugeBytes", number);
    napi_create_int64(env, (int64_t)result.text_bytes, &number);
    napi_set_named_property(env, object, "textBytes", number);
    return object;
}

NAPI_MODULE_INIT()
{
    napi_value function;

    napi_create_function(env, "attach", NAPI_AUTO_LENGTH, attach, NULL, &function);
    napi_set_named_property(env, exports, "attach", function);
    return exports;
}
