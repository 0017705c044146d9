// Makes, lists and deletes a route with Alibaba's client for Node.js. Arguments: host:port of the API.
const { default: Client, CreateRouteEntryRequest, DescribeRouteEntryListRequest, DescribeVSwitchAttributesRequest,
  DescribeRouteTableListRequest, DeleteRouteEntryRequest } = require('@alicloud/vpc20160428');

async function main() {
  const client = new Client({ accessKeyId: process.env.KEY_ID, accessKeySecret: process.env.KEY_SECRET, regionId: 'cn-hangzhou',
    endpoint: process.argv[2], protocol: 'HTTP', signatureAlgorithm: 'v2' });
  const where = { regionId: 'cn-hangzhou', routeTableId: 'vtb-main' };
  const lists = async () => (await client.describeRouteEntryList(new DescribeRouteEntryListRequest({ ...where, routeEntryType: 'Custom' })))
    .body.routeEntrys.routeEntry.map((r) => `${r.destinationCidrBlock} ${r.nextHops.nextHop[0].nextHopId} ${r.status}`);
  const made = await client.createRouteEntry(new CreateRouteEntryRequest({ ...where, destinationCidrBlock: '10.244.9.0/24',
    nextHopType: 'Instance', nextHopId: 'i-2', description: 'by Node.js' }));
  const before = await lists();
  const vswitch = await client.describeVSwitchAttributes(new DescribeVSwitchAttributesRequest({ regionId: 'cn-hangzhou', vSwitchId: 'vsw-1' }));
  const tables = await client.describeRouteTableList(new DescribeRouteTableListRequest({ regionId: 'cn-hangzhou', vpcId: 'vpc-1' }));
  let twice = '';
  try {
    await client.createRouteEntry(new CreateRouteEntryRequest({ ...where, destinationCidrBlock: '10.244.9.0/24',
      nextHopType: 'Instance', nextHopId: 'i-1' }));
  } catch (e) {
    twice = e.code;
  }
  await client.deleteRouteEntry(new DeleteRouteEntryRequest({ ...where, destinationCidrBlock: '10.244.9.0/24', nextHopId: 'i-2' }));
  console.log(JSON.stringify({ id: made.body.routeEntryId, before, twice, after: await lists(), table: vswitch.body.routeTable.routeTableId,
    tables: tables.body.routerTableList.routerTableListType.length }));
}

main().catch((e) => { console.error(e); process.exit(1); });
