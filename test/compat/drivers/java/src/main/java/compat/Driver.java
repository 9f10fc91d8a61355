package compat;

import com.alibaba.nacos.api.PropertyKeyConst;
import com.alibaba.nacos.api.common.Constants;
import com.alibaba.nacos.api.naming.NamingFactory;
import com.alibaba.nacos.api.naming.NamingService;
import com.alibaba.nacos.api.naming.listener.EventListener;
import com.alibaba.nacos.api.naming.listener.NamingEvent;
import com.alibaba.nacos.api.naming.pojo.Instance;
import com.alibaba.nacos.api.naming.pojo.ListView;
import com.alibaba.nacos.common.utils.VersionUtils;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.net.ConnectException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/**
 * Drives the official Java SDK for the compatibility suite: reads one JSON request a line from
 * standard input and writes one JSON response or listener event a line to standard output. The
 * protocol is described in test/compat/README.md.
 */
public final class Driver {

    private static final ObjectMapper JSON = new ObjectMapper();

    // Operations, with the call that each needs. Not every version of the SDK has them, so they are
    // looked up where the others are just called.
    private static final Map<String, String> OPTIONAL = Map.of(
            "batchRegister", "batchRegisterInstance",
            "batchRemove", "batchDeregisterInstance",
            "protected", "getService",
            "watchServices", "fuzzyWatchWithServiceKeys");

    private final PrintStream out;
    private final Map<String, NamingService> clients = new ConcurrentHashMap<>();
    // The SDK recognises a listener by its identity.
    private final Map<String, EventListener> listeners = new ConcurrentHashMap<>();
    private final Map<String, Object> watchers = new ConcurrentHashMap<>();

    private Driver(PrintStream out) {
        this.out = out;
    }

    public static void main(String[] args) throws IOException {
        Driver driver = new Driver(System.out);
        System.setOut(System.err); // whatever the SDK prints must not get between the protocol's lines
        ObjectNode hello = JSON.createObjectNode().put("event", "hello").put("version", VersionUtils.version);
        hello.set("lacks", JSON.valueToTree(
                OPTIONAL.keySet().stream().filter(op -> !offers(OPTIONAL.get(op))).toList()));
        driver.send(hello);
        driver.serve(new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8)));
        System.exit(0); // not every thread of the SDK is a daemon
    }

    /** Answers requests until the input ends, each on a thread of its own, so that a slow call of one
     * client does not hold up another. */
    private void serve(BufferedReader in) throws IOException {
        ExecutorService requests = Executors.newCachedThreadPool();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode request = JSON.readTree(line);
            requests.execute(() -> answer(request));
        }
    }

    private void answer(JsonNode request) {
        ObjectNode response;
        try {
            response = handle(request).put("ok", true);
        } catch (Exception | LinkageError e) {
            response = JSON.createObjectNode().put("ok", false).put("error", e.toString());
        }
        send(response.put("id", request.get("id").asInt()));
    }

    private synchronized void send(ObjectNode message) {
        byte[] line = (message + "\n").getBytes(StandardCharsets.UTF_8);
        out.write(line, 0, line.length);
        out.flush();
    }

    private ObjectNode handle(JsonNode r) throws Exception {
        String op = r.get("op").asText();
        if (op.equals("connect")) {
            return connect(r);
        }
        NamingService client = clients.get(r.get("client").asText());
        if (client == null) {
            throw new IllegalArgumentException("no client " + r.get("client"));
        }
        String service = r.path("service").asText();
        String group = r.path("group").asText();
        if (group.isEmpty()) {
            group = Constants.DEFAULT_GROUP;
        }
        List<String> clusters = new ArrayList<>();
        r.path("clusters").forEach(c -> clusters.add(c.asText()));
        ObjectNode result = JSON.createObjectNode();
        switch (op) {
            case "close" -> client.shutDown();
            // Registering again is how this SDK changes an instance.
            case "register", "update" -> client.registerInstance(service, group, toSdk(r.get("instance")));
            case "deregister" -> client.deregisterInstance(service, group, toSdk(r.get("instance")));
            case "batchRegister", "batchRemove" -> call(client, OPTIONAL.get(op), service, group, batch(r));
            case "list" -> result.set("hosts",
                    fromSdk(client.getAllInstances(service, group, clusters, false)));
            case "selectHealthy" -> result.set("hosts",
                    fromSdk(List.of(client.selectOneHealthyInstance(service, group, clusters, false))));
            case "services" -> {
                ListView<String> page = client.getServicesOfServer(
                        r.get("page").asInt(), r.get("size").asInt(), group);
                result.put("count", page.getCount()).set("services", JSON.valueToTree(page.getData()));
            }
            case "subscribe" -> {
                String subscription = r.get("subscription").asText();
                EventListener listener = event -> {
                    ObjectNode push = JSON.createObjectNode().put("event", "push");
                    push.put("subscription", subscription).put("timeMs", System.currentTimeMillis())
                            .set("hosts", fromSdk(((NamingEvent) event).getInstances()));
                    send(push);
                };
                listeners.put(subscription, listener);
                client.subscribe(service, group, clusters, listener);
            }
            case "unsubscribe" -> client.unsubscribe(service, group, clusters,
                    listeners.get(r.get("subscription").asText()));
            case "watchServices" -> {
                Object watcher = watcher(r.get("subscription").asText());
                watchers.put(r.get("subscription").asText(), watcher);
                Future<?> keys = (Future<?>) call(client, OPTIONAL.get(op), service, group, watcher);
                // The SDK's own way to wait until it has all services that there are.
                result.set("services", JSON.valueToTree(
                        ((ListView<?>) keys.get(r.get("timeoutMs").asLong(), TimeUnit.MILLISECONDS)).getData()));
            }
            case "unwatchServices" -> call(client, "cancelFuzzyWatch", service, group,
                    watchers.get(r.get("subscription").asText()));
            default -> throw new IllegalArgumentException("unknown op " + op);
        }
        return result;
    }

    private static boolean offers(String name) {
        return Arrays.stream(NamingService.class.getMethods()).anyMatch(m -> m.getName().equals(name));
    }

    /** Calls a method of the SDK that not every version has. */
    private static Object call(NamingService client, String name, Object... arguments) throws Exception {
        for (Method method : NamingService.class.getMethods()) {
            if (method.getName().equals(name) && method.getParameterCount() == arguments.length) {
                try {
                    return method.invoke(client, arguments);
                } catch (InvocationTargetException e) {
                    throw e.getCause() instanceof Exception cause ? cause : e;
                }
            }
        }
        throw new NoSuchMethodException("the SDK has no " + name);
    }

    /** Implements FuzzyWatchEventWatcher, which SDKs before 3.0 do not have. */
    private Object watcher(String subscription) throws ClassNotFoundException {
        Class<?> type = Class.forName("com.alibaba.nacos.api.naming.listener.FuzzyWatchEventWatcher");
        // Two threads of the SDK tell a new watcher what there is, and both may tell of the same service.
        Set<String> present = ConcurrentHashMap.newKeySet();
        return Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, (proxy, method, arguments) -> {
            switch (method.getName()) {
                case "onEvent" -> {
                    Object event = arguments[0];
                    String change = (String) event.getClass().getMethod("getChangeType").invoke(event);
                    String group = (String) event.getClass().getMethod("getGroupName").invoke(event);
                    String service = (String) event.getClass().getMethod("getServiceName").invoke(event);
                    String key = group + "@@" + service;
                    if (change.equals("ADD_SERVICE") && !present.add(key)) {
                        return null;
                    }
                    if (change.equals("DELETE_SERVICE")) {
                        present.remove(key);
                    }
                    send(JSON.createObjectNode().put("event", "change").put("subscription", subscription)
                            .put("change", change).put("group", group).put("service", service));
                    return null;
                }
                case "equals" -> {
                    return proxy == arguments[0];
                }
                case "hashCode" -> {
                    return System.identityHashCode(proxy);
                }
                case "toString" -> {
                    return subscription;
                }
                default -> {
                    return null; // getExecutor: the SDK's own thread
                }
            }
        });
    }

    private ObjectNode connect(JsonNode r) throws Exception {
        Properties properties = new Properties();
        properties.put(PropertyKeyConst.SERVER_ADDR, r.get("server").asText());
        properties.put(PropertyKeyConst.NAMESPACE, r.path("namespace").asText());
        NamingService client;
        synchronized (clients) {
            // One at a time: two threads that load the SDK's plug-ins at once can miss some of them
            // ("No server list provider found").
            client = NamingFactory.createNamingService(properties);
        }
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(r.get("timeoutMs").asLong());
        while (!"UP".equals(client.getServerStatus())) {
            if (System.nanoTime() > deadline) {
                client.shutDown();
                throw new ConnectException("not connected to " + r.get("server").asText() + " in time");
            }
            Thread.sleep(20);
        }
        clients.put(r.get("client").asText(), client);
        return JSON.createObjectNode();
    }

    private static List<Instance> batch(JsonNode r) {
        List<Instance> instances = new ArrayList<>();
        r.get("instances").forEach(i -> instances.add(toSdk(i)));
        return instances;
    }

    private static Instance toSdk(JsonNode i) {
        Instance instance = new Instance();
        instance.setIp(i.get("ip").asText());
        instance.setPort(i.get("port").asInt());
        instance.setWeight(i.get("weight").asDouble());
        instance.setHealthy(i.get("healthy").asBoolean());
        instance.setEnabled(i.get("enabled").asBoolean());
        instance.setClusterName(i.get("cluster").asText());
        instance.setEphemeral(i.get("ephemeral").asBoolean());
        Map<String, String> metadata = new HashMap<>();
        i.path("metadata").fields().forEachRemaining(e -> metadata.put(e.getKey(), e.getValue().asText()));
        instance.setMetadata(metadata);
        return instance;
    }

    private static ArrayNode fromSdk(List<Instance> hosts) {
        ArrayNode list = JSON.createArrayNode();
        for (Instance h : hosts) {
            list.addObject()
                    .put("ip", h.getIp())
                    .put("port", h.getPort())
                    .put("weight", h.getWeight())
                    .put("healthy", h.isHealthy())
                    .put("enabled", h.isEnabled())
                    .put("cluster", h.getClusterName())
                    .put("ephemeral", h.isEphemeral())
                    .set("metadata", JSON.valueToTree(h.getMetadata()));
        }
        return list;
    }
}
